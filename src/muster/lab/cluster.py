"""`Lab`: the virtual cluster as a Python context manager."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from muster.errors import LabError
from muster.lab import link_rules
from muster.lab.fake_gpus import gpus_of
from muster.lab.faults import BETTER_LAB, Faults, State, checked_size
from muster.lab.kinds import LIMITS, Kind, choose
from muster.lab.loopback import LoopbackSite
from muster.lab.mounts import file_systems_of, hidden_folders
from muster.lab.mpi_service import Mpi
from muster.lab.namespaces import HostSettings, NamespaceSite
from muster.lab.podman_service import Podman
from muster.lab.service import Service
from muster.lab.slurm_service import Slurm
from muster.lab.system_programs import find


@dataclass(frozen=True, kw_only=True)
class HostStatus:
    """A host as shown by `muster lab status`."""

    name: str
    address: str
    state: State
    faults: tuple[str, ...]


class Lab(Faults):
    """Hosts h1 to hN, each with its own address, hostname, disk, process tree and sshd.

    >>> with Lab(2, bind=("/data",)) as lab:
    ...     lab.run("h1", ["ssh", "h2", "hostname"], timeout=10).stdout
    'h2\\n'

    Every host sees the files of this machine; what it writes stays on its own `disk`. It has its own /tmp, /dev/shm
    and /run, which are empty at first. `bind` lists directories that all hosts share with this machine, as over NFS.
    Nothing outlives the owner: when this process ends, even by SIGKILL, the hosts and all their processes are gone.
    (A child created by a bare fork() also holds the owner's pipes, so the lab then lasts as long as that child.)

    `gpus` gives each host this many fake GPUs (a mapping: only some hosts), which exist only as files in /dev. `slurm`
    makes the lab a Slurm cluster, with h1 as its controller and login node and every host as a node, all of
    them ready for jobs when `start` returns. `mpi` ensures that Open MPI and MPICH can start ranks from every
    host on every other, and `podman` that containers run in the hosts, from `muster.lab.podman_service.IMAGE`.

    Without root the lab has a more limited `kind`, and `limits` lists what is missing, one sentence each.
    """

    def __init__(
        self,
        hosts: int,
        *,
        bind: Sequence[str | Path] = (),
        disk: str = "256m",
        shm: str = "1g",
        gpus: int | Mapping[str, int] | None = None,
        slurm: bool = False,
        mpi: bool = False,
        podman: bool = False,
        kind: Kind | None = None,
    ) -> None:
        if not 1 <= hosts <= link_rules.MAX_HOSTS:
            raise LabError(f"number of hosts must be from 1 to {link_rules.MAX_HOSTS}, got {hosts}")
        self.kind, self.limits = (kind, LIMITS[kind]) if kind else choose()
        super().__init__(tuple(f"h{number}" for number in range(1, hosts + 1)), checked_size(disk))
        shared = (*_needed_folders(), *(_shared_folder(path) for path in bind))
        devices = None if gpus is None else gpus_of(self.names, gpus)
        self._settings = HostSettings(bind=shared, disk=disk, shm=checked_size(shm), gpus=devices)
        self._services = self._chosen_services(slurm=slurm, mpi=mpi, podman=podman)

    def _chosen_services(self, *, slurm: bool, mpi: bool, podman: bool) -> tuple[Service, ...]:
        if self._settings.gpus is not None and self.kind == "loopback":
            raise LabError("this lab cannot have GPUs: its hosts are only loopback addresses", hint=BETTER_LAB)
        services: list[Service] = []
        if slurm:
            services.append(Slurm(self._settings.gpus or dict.fromkeys(self.names, 0)))
        if podman:
            services.append(Podman())
        if mpi:
            services.append(Mpi())
        for service in services:
            if self.kind not in service.kinds:
                best = "in namespaces" if "userns" in service.kinds else "started as root"
                raise LabError(
                    f"{service.title} needs a lab {best}", hint="start the lab as root, for example with sudo"
                )
            for program in service.programs:
                find(program)
        return tuple(services)

    def __enter__(self) -> Lab:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start all hosts; when this returns, they answer ssh and their services work."""
        if self.kind == "loopback":
            site = LoopbackSite(self.names)
        else:
            site = NamespaceSite(self.names, self._settings, rootless=self.kind == "userns")
        try:
            site.open()
            self._attach(site)
            for service in self._services:
                service.write(site.folder / "boot")
            site.start(self.names)
            for service in self._services:
                service.wait(self.names, self.run)
        except BaseException:
            self.stop()
            site.close()
            raise

    # --- reaching the hosts ---------------------------------------------------------------------------

    def address(self, host: str) -> str:
        """The address of a host, the same after a reboot."""
        return self._up().addresses[self._known(host)]

    def ssh_argv(self) -> list[str]:
        """The command line that reaches every host from this machine: append options, host and command."""
        return self._up().ssh_argv()

    def enter_argv(self, host: str, *, cwd: str | None = None) -> list[str]:
        """The command line that runs what follows it inside a host, in `cwd` if the host has that directory."""
        self._awake(host)
        # A process inherits the control group of its parent, so it must first join that of a limited host.
        groups = "".join(f'echo $$ > "{group}/cgroup.procs" && ' for group in self._condition(host).groups)
        join = ["sh", "-c", f'{groups}exec "$@"', "sh"] if groups else []
        change = ["sh", "-c", 'cd "$0" 2>/dev/null || cd /; exec "$@"', cwd] if cwd else []
        return [*join, *self._up().enter_argv(host), *change]

    def popen(
        self, host: str, argv: Sequence[str], *, cwd: str | None = None, **popen_kwargs: Any
    ) -> subprocess.Popen[Any]:
        """Start a command inside a host, with the environment of this process; signals to the Popen reach it."""
        return self._up().process_type([*self.enter_argv(host, cwd=cwd), *argv], **popen_kwargs)

    def run(
        self,
        host: str,
        argv: Sequence[str],
        *,
        timeout: float,
        input: str | None = None,
        cwd: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside a host to its end, at most `timeout` seconds long."""
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        pipe = subprocess.PIPE
        with self.popen(host, argv, cwd=cwd, stdin=stdin, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                out, err = process.communicate(input, timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def processes(self, host: str) -> list[tuple[int, str]]:
        """Processes of a host except init, sshd and idle services: (pid outside the host, command line)."""
        self._known(host)
        site = self._up()
        if not site.running(host):
            return []
        init = site.init(host)
        own = {name for service in self._services for name in service.daemons}
        found = [(pid, _command_line(pid)) for pid in site.pids(host) if pid != init and not _is_daemon(pid, own)]
        return [(pid, command) for pid, command in found if command]

    def status(self) -> list[HostStatus]:
        """The state of each host."""
        return [
            HostStatus(
                name=name, address=self.address(name), state=self._state(name), faults=self._condition(name).describe()
            )
            for name in self.names
        ]

    def reboot(self, host: str) -> None:
        """Restart a host from any state: same name, address and keys, no faults, an empty disk."""
        self._kill(self._known(host), silently=True)
        self._up().start([host])
        if all(status.state == "up" and not status.faults for status in self.status()):
            # With other faults in the lab, a service may be unable to restart.
            for service in self._services:
                service.wait([host], self.run)


def _needed_folders() -> tuple[str, ...]:
    """Directories with the user's work, Python and Muster that hosts would not see otherwise; shared, as over NFS."""
    work = (os.getcwd(), sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
    file_systems = file_systems_of((os.path.expanduser("~"), *work), Path("/proc/self/mountinfo").read_text())
    return (*file_systems, *hidden_folders(work))


def _shared_folder(path: str | Path) -> str:
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise LabError(f"cannot share {path} with the hosts: it is not a directory")
    return real


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _is_daemon(pid: int, daemons: Set[str]) -> bool:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        # OpenSSH 10 splits it into sshd, sshd-session and sshd-auth.
        return name.startswith("sshd") or name in daemons
    except OSError:
        return True

"""Hosts in anonymous namespaces: nothing is registered anywhere, so nothing can be left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.errors import LabError
from muster.lab import keys, link_rules
from muster.lab.host_processes import HostProcess, living_in
from muster.lab.node import Node
from muster.lab.site import Site, script_argv
from muster.lab.system_programs import SYSTEM_PATH, find

HOST_SCRIPT = Path(__file__).with_name("host.sh")
CALL_LIMIT = 30.0
"""Timeout in seconds of one call of ip, tc or nft."""


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """Settings shared by all hosts of a lab."""

    bind: tuple[str, ...] = ()
    disk: str = "256m"
    shm: str = "1g"
    gpus: Mapping[str, int] | None = None
    """Number of fake GPUs of each host; None: hosts have those of this machine."""


def call(argv: Sequence[str], *, text: str = "", what: str) -> str:
    """Run a short command; if it fails, raise a LabError that starts with `what`."""
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=CALL_LIMIT)
    except subprocess.TimeoutExpired:
        raise LabError(f"{what}: `{argv[0]}` timed out after {CALL_LIMIT:g} s") from None
    if done.returncode != 0:
        raise LabError(f"{what}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


class HostNode(Node):
    """A running host."""

    pid_namespace: str = ""
    """The PID namespace of its processes, as in /proc/PID/ns/pid; set when the host is built."""

    def built(self, deadline: float) -> None:
        """Wait until the host has its disk and only the cable is missing."""
        self.init = int(self.expect("built", deadline)[0])
        self.pid_namespace = os.readlink(f"/proc/{self.init}/ns/pid")

    def terminate(self) -> None:
        """Kill init and thereby every process of the host at once; the kernel still closes their sockets."""
        if self.alive and self.pid_namespace:
            os.kill(self.init, signal.SIGKILL)


class NamespaceSite(Site[HostNode]):
    """The switch and the hosts of one lab, created as root or, if `rootless`, in a user namespace."""

    process_type: type[subprocess.Popen[Any]] = HostProcess

    def __init__(self, names: Sequence[str], settings: HostSettings, *, rootless: bool) -> None:
        super().__init__({name: f"{link_rules.NETWORK}.{number}" for number, name in enumerate(names, start=1)})
        self.rootless = rootless
        self._settings = settings

    def open(self) -> None:
        """Start the switch, which also owns the lab's directory, and write the keys."""
        for program in ("ip", "ssh", "sshd", "nsenter", "unshare", "bash"):
            find(program)
        user = ["--user", "--map-root-user"] if self.rootless else []
        self._start_switch([find("unshare"), *user, "--net"], address=link_rules.SWITCH_ADDRESS)
        self._write_keys()
        folder = self.folder / "ssh"
        (folder / "config").write_text(self._client_config(Path("~/.ssh")))
        (folder / "hosts").write_text(keys.etc_hosts(self.addresses))
        (folder / "neighbors").write_text(link_rules.neighbors(self.addresses))
        (folder / "sshd_config").write_text(keys.sshd_config(keys.HOST_FILES, f"{keys.HOST_FILES}/sshd.pid"))

    def start(self, names: Sequence[str]) -> None:
        """Start hosts: build them in parallel, connect all cables at once, then start their sshd."""
        # 4 hosts take 0.2 s and 64 take 2.5 s on two idle cores; a busy machine may take many times as long.
        deadline = time.monotonic() + 20 + len(names)
        try:
            for name in names:
                self.hosts[name] = self._spawn(name)
            for name in names:
                self.hosts[name].built(deadline)
            cables = link_rules.plug({name: self.hosts[name].init for name in names}, self.addresses)
            self.in_switch(["ip", "-b", "-"], text=cables, what="could not connect the cables")
            for name in names:
                self.hosts[name].go()
            for name in names:
                self.hosts[name].expect("up", deadline)
        except BaseException:
            for name in names:
                self.kill(name)
            raise

    def _spawn(self, name: str) -> HostNode:
        env = {
            "NAME": name,
            "ADDRESS": self.addresses[name],
            "DIR": str(self.folder),
            "DISK": self._settings.disk,
            "SHM": self._settings.shm,
            "BIND": "\n".join(self._settings.bind),
            "GPUS": "" if self._settings.gpus is None else str(self._settings.gpus[name]),
            "SSHD": find("sshd"),
            "HOME": self._login.pw_dir,
            "RUN_AS": f"{self._login.pw_uid} {self._login.pw_gid}" if self.rootless else "",
            "PATH": SYSTEM_PATH,
            "SCRIPT": HOST_SCRIPT.read_text(),
        }
        join_user = self._enter(self.switch_pid, []) if self.rootless else []
        namespaces = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child"]
        argv = [*join_user, find("unshare"), *namespaces, *script_argv(f"muster lab host {name}")]
        return HostNode(name, argv, env=env, errors=self.folder / f"{name}.errors")

    def remove_cable(self, name: str) -> None:
        """Remove what is left of a dead host's cable; the kernel does it too, but only some time later."""
        try:
            self.in_switch(["ip", "-force", "-b", "-"], text=link_rules.unplug([name]), what="unplugging")
        except LabError:
            pass  # the kernel was faster

    @property
    def switch_pid(self) -> int:
        """A process in the switch's network namespace."""
        assert self._switch is not None, "the lab is not running"
        return self._switch.pid

    def in_switch(self, argv: Sequence[str], *, text: str = "", what: str) -> str:
        """Run a network tool in the switch."""
        return call(self.switch_argv([find(argv[0]), *argv[1:]]), text=text, what=what)

    def in_network_of(self, name: str, argv: Sequence[str], *, text: str = "", what: str) -> str:
        """Run a network tool of the machine in the network namespace of a host."""
        enter = self._enter(self.init(name), ["--net"])
        return call([*enter, find(argv[0]), *argv[1:]], text=text, what=what)

    def switch_argv(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` in the network of the switch."""
        return [*self._enter(self.switch_pid, ["--net"]), *argv]

    def _enter(self, pid: int, namespaces: list[str]) -> list[str]:
        user = ["--user", "--preserve-credentials"] if self.rootless else []
        return [find("nsenter"), f"--target={pid}", *user, *namespaces, "--"]

    def ssh_argv(self) -> list[str]:
        """The command line that reaches every host from the owner."""
        return self.switch_argv([*self._as_user(), find("ssh"), "-F", str(self.ssh_config)])

    def enter_argv(self, name: str, *, as_root: bool = False) -> list[str]:
        """The command line that runs what follows inside a host, in all its namespaces."""
        namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid"]
        return [*self._enter(self.init(name), namespaces), *([] if as_root else self._as_user())]

    def _as_user(self) -> list[str]:
        """In a user namespace we are root; a nested one gives the user their ids from outside."""
        if not self.rootless:
            return []
        ids = [f"--map-user={self._login.pw_uid}", f"--map-group={self._login.pw_gid}"]
        return [find("unshare"), "--user", *ids, "--"]

    def pids(self, name: str) -> list[int]:
        """All live processes of a host, including those in containers, with their pids outside the host."""
        return living_in(self.hosts[name].pid_namespace)

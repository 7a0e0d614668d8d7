"""The stand-in site as a test uses it."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from waiting import patience, wait_until

from muster.lab import Lab

PROGRAMS = Path(__file__).with_name("programs")
OF_SERVER = ("qsub", "qstat", "qdel", "qsig", "qalter", "qrerun", "pbs_release_nodes")
CLIENTS = (*OF_SERVER, "pbsdsh")
OPENPBS_ONLY = ("pbs_tmrsh", "pbs_attach", "pbs_release_nodes")
SERVER = "pbssrv"

# What each program of the server does first: with a server that is down or hangs, it fails or waits.
REACH_SERVER = """\
if [ -e {state}/down ]; then
    echo "Connection refused" >&2
    echo "{name}: cannot connect to server {server} (errno=15010)" >&2
    exit 255
fi
while [ -e {state}/hung ]; do sleep 0.1; done
"""


class PbsSite:
    """PBS on the hosts of a lab, from `with` to its end; see the package for what it copies.

    >>> with PbsSite(lab, folder) as site:
    ...     job = site.qsub("h1", "pbsdsh -- hostname", select="2:ncpus=1", place="scatter", walltime=60)
    ...     job.wait(30), job.output
    (0, 'h1\\nh2\\n')

    `folder` is one that all hosts share. Below it lie the programs (`bin`), what the server knows, and the users' home
    folder, which is $HOME in every job. Hosts have `ncpus` and `ngpus` for jobs to ask for, whether or not these exist.
    """

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        *,
        flavour: Literal["openpbs", "torque"] = "openpbs",
        kill_delay: float = 2.0,
        ncpus: int = 8,
        ngpus: int | Mapping[str, int] = 8,
        history: bool = True,
        default_chunk: Mapping[str, int] | None = None,
        vnodes: Mapping[str, int] | None = None,
    ) -> None:
        self.lab = lab
        self.folder = folder / f"pbs-{time.monotonic_ns()}"
        self.home = self.folder / "home"
        """$HOME of jobs."""
        self.bin = self.folder / "exec" / "bin"
        """The programs."""
        self._state = self.folder / "server"
        self._settings = {
            "flavour": flavour,
            "kill_delay": kill_delay,
            "history": history,
            "default_chunk": dict(default_chunk or {}),
            "usecp": str(folder),
            "home": str(self.home),
            "exec": str(self.bin.parent),
            "state": str(self._state),
            "server": SERVER,
            "hosts": {
                name: {
                    "address": lab.address(name),
                    "ncpus": ncpus,
                    "ngpus": ngpus if isinstance(ngpus, int) else ngpus[name],
                    "vnodes": (vnodes or {}).get(name, 1),
                }
                for name in lab.names
            },
        }
        self._moms: dict[str, subprocess.Popen[Any]] = {}

    def __enter__(self) -> PbsSite:
        self._install()
        try:
            for host in self.lab.names:
                self._start_mom(host)
            for host in self.lab.names:
                self._await_mom(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _install(self) -> None:
        library = self.bin.parent / "lib"
        for path in (self.bin, self.home, self._state):
            path.mkdir(parents=True)
        shutil.copytree(PROGRAMS, library, ignore=shutil.ignore_patterns("__pycache__"))
        (library / "site.json").write_text(json.dumps(self._settings))
        torque = self._settings["flavour"] == "torque"
        for name in dict.fromkeys((*CLIENTS, *OPENPBS_ONLY)):
            if torque and name in OPENPBS_ONLY:
                continue
            module, extra = ("qdel", f" {name}") if name in ("qdel", "qsig") else (name, "")
            start = shlex.join([sys.executable, "-sSE", str(library / f"{module}.py")])
            reach = REACH_SERVER.format(state=self._state, name=name, server=SERVER) if name in OF_SERVER else ""
            (self.bin / name).write_text(f'#!/bin/sh\n{reach}exec {start}{extra} "$@"\n')
            (self.bin / name).chmod(0o755)

    def boot(self, host: str) -> None:
        """Start the mom of a host that was down."""
        self._end_mom(host)
        self._start_mom(host)
        self._await_mom(host)

    def kill_mom(self, host: str) -> None:
        """Kill the mom of a host and nothing else; `boot` starts another one."""
        self._moms[host].kill()
        self._moms[host].wait(10)

    @contextmanager
    def server(self, fault: Literal["down", "hung"]) -> Generator[None]:
        """Let the server be down or hang for a while; moms and jobs run on."""
        mark = self._state / fault
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()

    def _start_mom(self, host: str) -> None:
        program = [sys.executable, "-sSE", str(self.bin.parent / "lib" / "mom.py"), host]
        with (self.folder / f"mom-{host}.log").open("ab") as log:
            self._moms[host] = self.lab.popen(
                host,
                program,
                cwd="/",
                env={"PATH": "/bin:/usr/bin"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def _await_mom(self, host: str, limit: float = 20) -> None:
        stdout = self._moms[host].stdout
        assert stdout is not None
        if not select.select([stdout], [], [], limit)[0] or not stdout.readline():
            log = (self.folder / f"mom-{host}.log").read_text()
            raise AssertionError(f"the mom of {host} did not start within {limit} s\n{log}")

    def _end_mom(self, host: str) -> None:
        mom = self._moms.pop(host)
        for pipe in (mom.stdin, mom.stdout):
            if pipe is not None:
                pipe.close()
        try:
            mom.wait(10)
        except subprocess.TimeoutExpired:
            mom.kill()

    def close(self) -> None:
        """End all moms, and with them the processes of jobs, except those that left their session."""
        for host in list(self._moms):
            self._end_mom(host)

    @property
    def path(self) -> str:
        """A PATH that begins with the programs."""
        return f"{self.bin}:{os.environ['PATH']}"

    def run(
        self, host: str, argv: Sequence[str], *, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, as in a user's shell that finds the programs of PBS."""
        shell = {"PATH": self.path, "HOME": str(self.home), "LANG": "C.UTF-8", "SHELL": "/bin/bash"}
        with self.lab.popen(
            host,
            argv,
            cwd=str(cwd or self.folder),
            env={**shell, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=60)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def qsub(
        self,
        host: str,
        script: str,
        *options: str,
        select: str | None = None,
        place: str | None = None,
        walltime: int | None = None,
        name: str = "job",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Job:
        """Submit a script from a host and a folder; `env` is passed with -v, and `options` go to qsub as they are.

        Both streams of the job go to one file (-j oe) in that folder, unless an option says otherwise.
        """
        folder = cwd or self.folder
        file = folder / f"{name}-{time.monotonic_ns()}.sh"
        file.write_text(script)
        argv = ["qsub", "-N", name, "-j", "oe"]
        for resource, value in (("select", select), ("place", place), ("walltime", walltime)):
            argv += ["-l", f"{resource}={value}"] if value is not None else []
        argv += ["-v", ",".join(env)] if env else []
        done = self.run(host, [*argv, *options, str(file)], cwd=folder, **(env or {}))
        if done.returncode != 0:
            raise AssertionError(f"qsub: exit code {done.returncode}: {done.stderr}")
        return self.job(done.stdout.strip())

    def job(self, id: str) -> Job:
        """A job by the id that qsub printed."""
        return Job(self, id)

    def alive(self, host: str) -> list[str]:
        """The command lines of what lives on a host beside its mom."""
        return [command for _, command in self.lab.processes(host) if "/lib/mom.py" not in command]


class Job:
    """A job, looked at from outside."""

    def __init__(self, site: PbsSite, id: str) -> None:
        self.site = site
        self.id = id

    @property
    def record(self) -> dict[str, Any]:
        """All that the server knows of it."""
        return json.loads((self.site.folder / "server" / f"{self.id}.json").read_text())

    @property
    def state(self) -> str:
        """Q, R, E, H or F."""
        return self.record["state"]

    @property
    def exit_status(self) -> int | None:
        """Exit_status as qstat shows it, once the job has ended."""
        return self.record["exit_status"]

    @property
    def hosts(self) -> list[str]:
        """Its hosts; the script runs on the first."""
        record = self.record
        return [] if record["state"] in "QH" else list(dict.fromkeys(chunk["host"] for chunk in record["chunks"]))

    @property
    def path(self) -> Path:
        """The file that will hold its output."""
        return Path(self.record["paths"]["o"])

    @property
    def output(self) -> str:
        """Its output: what is in the spool of its first host while it runs, then the file."""
        record = self.record
        if record["delivered"]:
            return self.path.read_text(errors="surrogateescape")
        if record["state"] in "QH":
            return ""
        home = "torque" if self.site._settings["flavour"] == "torque" else "pbs"
        spooled = f"/var/spool/{home}/spool/{self.id}.OU"
        done = self.site.run(self.hosts[0], ["cat", spooled])
        return done.stdout if done.returncode == 0 else self.output if self.record["delivered"] else ""

    @property
    def errors(self) -> str:
        """What went to stderr, where it has a file of its own."""
        return Path(self.record["paths"]["e"]).read_text(errors="surrogateescape")

    def wait(self, timeout: float = 60) -> int | None:
        """Wait until the job has ended and its output has arrived; return its Exit_status."""
        wait_until(f"the end of {self.id}", self._has_ended, patience(timeout), self._told)
        return self.exit_status

    def _has_ended(self) -> bool:
        record = self.record
        return record["state"] == "F" and record["delivered"]

    def _told(self) -> str:
        record = {name: value for name, value in self.record.items() if name != "script"}
        return f"{record}\n{self.output}"

    def wait_for_output(self, text: str, timeout: float = 60) -> str:
        """Wait until the job has written this, and return its output so far."""

        def written() -> str | None:
            state, output = self.state, self.output
            assert text in output or state != "F", f"{self.id} has ended and did not write {text!r}:\n{output}"
            return output if text in output else None

        return wait_until(f"{text!r} from {self.id}", written, patience(timeout), self._told)

    def qdel(self, host: str | None = None) -> None:
        """Delete the job."""
        done = self.site.run(host or self.record["submit_host"], ["qdel", self.id])
        assert done.returncode == 0, done.stderr

    def limit(self, walltime: int) -> None:
        """Give the job another walltime, in seconds since its start."""
        done = self.site.run(self.record["submit_host"], ["qalter", "-l", f"walltime={walltime}", self.id])
        assert done.returncode == 0, done.stderr

"""Running `muster run` from the outside, as a user does: on this machine, or from inside a lab host."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from waiting import end, patience, wait_until
from warm_python import WarmMuster

from muster.jobs.job_folders import read_state
from muster.lab import Lab

MUSTER = str(Path(sys.executable).with_name("muster"))
warm_muster: WarmMuster | None = None
"""Starts what `run_here` and `run_in` run, which saves the imports of each command; set by conftest.py."""

# A plain shell, without what a launcher around the tests may have left. No GPU, so that all machines agree.
PLAIN = {
    "PATH": os.environ["PATH"],
    "HOME": os.path.expanduser("~"),
    "LANG": "C.UTF-8",
    "CUDA_VISIBLE_DEVICES": "",
}


def program(folder: Path | None = None) -> str:
    """The `muster` for a command that runs to its end, on hosts that share a folder or on this machine."""
    return str(warm_muster.shims(folder) / "muster") if warm_muster else MUSTER


@dataclass(frozen=True, kw_only=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str
    state: Path

    @property
    def said(self) -> str:
        """Both streams, for looking something up and for the message of a failed assertion."""
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    @property
    def folder(self) -> Path:
        """The directory of the newest job."""

        def begun(folder: Path) -> tuple[str, float]:  # ids contain seconds only
            state = read_state(folder)
            return folder.name[: len("20261118-100000")], state.begin if state is not None else 0.0

        return max((self.state / "muster" / "jobs").iterdir(), key=begun)

    def log(self, rank: int, attempt: int = 0) -> bytes:
        """What a rank wrote in an attempt."""
        return (self.folder / f"attempt-{attempt}" / f"rank-{rank}.log").read_bytes()

    def lines(self, rank: int) -> list[str]:
        """The lines of one rank on stdout, without the label."""
        return [
            text for number, text in re.findall(r"^\[\S+ +(\d+)\] (.*)$", self.out, re.MULTILINE) if int(number) == rank
        ]


def run_here(
    folder: Path, *argv: str, command: str = "run", timeout: float = 100, state: Path | None = None, **env: str
) -> Done:
    """`muster run` (or another command) on this machine, in a folder, with a state folder of its own."""
    state = state or folder / f".state-{time.monotonic_ns()}"
    done = subprocess.run(
        [program(), command, *argv],
        cwd=folder,
        env={**PLAIN, "XDG_STATE_HOME": str(state), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=patience(timeout),
    )
    return Done(
        code=done.returncode,
        out=done.stdout.decode("utf-8", "surrogateescape"),
        err=done.stderr.decode("utf-8", "surrogateescape"),
        state=state,
    )


class Job:
    """A `muster run` on this machine that can be read and signalled while it runs; it ends with the `with` block."""

    def __init__(self, folder: Path, *argv: str, state: Path | None = None) -> None:
        self._folder = folder
        self._state = state or folder / "state"
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            os.fchmod(err.fileno(), 0o600)  # the address of a dashboard is not written where others can read it
            self.process = subprocess.Popen(
                [MUSTER, "run", *argv],
                cwd=folder,
                env={**PLAIN, "XDG_STATE_HOME": str(self._state)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)

    @property
    def out(self) -> str:
        """Its stdout so far."""
        return (self._folder / "out").read_text(errors="surrogateescape")

    @property
    def err(self) -> str:
        """Its stderr so far."""
        return (self._folder / "err").read_text(errors="surrogateescape")

    def wait_for(self, words: str) -> None:
        """Until it has said something, given as a pattern."""
        wait_until(words, lambda: re.search(words, self.err), patience(60), lambda: self.err)

    def wait(self, limit: float) -> Done:
        """Wait for its end."""
        code = self.process.wait(patience(limit))
        return Done(code=code, out=self.out, err=self.err, state=self._state)


class HostJob:
    """A `muster run` (or another command) inside a lab host, so that a cut cable really cuts the controller off."""

    def __init__(
        self, lab: Lab, host: str, folder: Path, *argv: str, command: str = "run", muster: str = MUSTER, **env: str
    ) -> None:
        self.lab = lab
        self.host = host
        self.state = folder / f"state-{time.monotonic_ns()}"
        self._out = folder / f"{self.state.name}.out"
        self._err = folder / f"{self.state.name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = lab.popen(
                host,
                [muster, command, *argv],
                cwd=str(folder),
                env={**PLAIN, "XDG_STATE_HOME": str(self.state), **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> str:
        """Its stdout so far."""
        return self._out.read_text(errors="surrogateescape")

    @property
    def err(self) -> str:
        """Its stderr so far."""
        return self._err.read_text(errors="surrogateescape")

    def wait(self, timeout: float = 100) -> Done:
        """Wait for its end."""
        try:
            code = self.process.wait(patience(timeout))
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"still running after {timeout} s\n{self.out}\n{self.err}") from None
        return Done(code=code, out=self.out, err=self.err, state=self.state)

    def end(self) -> None:
        """End it if it still runs."""
        end(self.process)


def run_in(
    lab: Lab, host: str, folder: Path, *argv: str, command: str = "run", timeout: float = 100, **env: str
) -> Done:
    """`muster run` (or another command) inside a lab host, to its end."""
    return HostJob(lab, host, folder, *argv, command=command, muster=program(folder), **env).wait(timeout)


@contextmanager
def alone_with_the_memory_killer() -> Generator[None]:
    """No other holder of this lock lets the kernel kill a process, or counts such kills, meanwhile.

    All hosts of all labs have one kernel and so one count of them: a rank that is killed by a test is said to have died
    for want of memory if that happens to a rank of another test at the same moment.
    """
    with (Path(tempfile.gettempdir()) / f"muster-tests-memory-killer-{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def without_silence(said: str) -> str:
    """What Muster said, but for a host that was not heard of for 1.5 s: on a busy machine that happens to all."""
    return re.sub(r"^muster: \S+ (has been silent for \S+ s|is back after .*)\n", "", said, flags=re.MULTILINE)


def alive(lab: Lab, hosts: Iterable[str]) -> dict[str, list[str]]:
    """The command lines of what lives on each host, where anything does."""
    found = {host: [command for _, command in lab.processes(host)] for host in hosts}
    return {host: commands for host, commands in found.items() if commands}


def pages(state: Path) -> list[int]:
    """The servers left by `muster run --dashboard` for jobs in a state directory."""
    found: list[int] = []
    jobs = [path.parent.name for path in state.rglob("state.json")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(f"muster dashboard {name}".encode() in command for name in jobs):
            found.append(int(process.name))
    return found


def end_pages(state: Path) -> None:
    """End these servers; else they stay up for 10 minutes after the job."""
    for process in pages(state):
        os.kill(process, signal.SIGTERM)
    wait_until("the pages to end", lambda: not pages(state), 40)

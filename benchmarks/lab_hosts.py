"""What the experiments on lab hosts share: the lab, and a command inside one host with its output."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.commands import environment
from benchmarks.experiment import Failed, Missing
from benchmarks.reaper import has_ended
from muster.errors import MusterError
from muster.lab import Lab


def bring_up(hosts: int, *folders: Path, slurm: bool = False) -> Lab:
    """A running lab that shares these directories; raise Missing if this machine does not support one."""
    try:
        lab = Lab(hosts, bind=(*folders, Path(__file__).parent), slurm=slurm)
    except MusterError as error:
        raise Missing(f"not measured: {error.message}") from None
    if lab.kind == "loopback":
        raise Missing("not measured: needs root, or user namespaces, for lab hosts")
    try:
        lab.start()
    except MusterError as error:
        raise Missing(f"not measured: the lab does not start ({error.message})") from None
    return lab


class InHost:
    """A command inside a lab host; it is ended on leaving the block, if it is still running."""

    def __init__(self, lab: Lab, host: str, argv: Sequence[str | Path], folder: Path) -> None:
        self.argv = [str(word) for word in argv]
        self.words = b""
        """Its output so far, stdout and stderr."""
        self.begin = time.time()
        self._process = lab.popen(
            host,
            self.argv,
            cwd=str(folder),
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()

    def __enter__(self) -> InHost:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def read_words(self, limit: float = 0.0) -> bool:
        """Wait this long for output; return False if it has closed its output."""
        if not select.select([self._output], [], [], max(0.0, limit))[0]:
            return True
        data = os.read(self._output, 1 << 16)
        self.words += data
        return bool(data)

    def wait_for_words(self, words: bytes, limit: float) -> float:
        """Read until this text appears in new output, and return the time."""
        said, deadline = len(self.words), time.time() + limit
        while words not in self.words[said:]:
            if not self.read_words(deadline - time.time()):
                raise self.failed(f"ended without printing `{words.decode()}`")
            if time.time() > deadline:
                raise self.failed(f"did not print `{words.decode()}` within {limit:.0f} s")
        return time.time()

    def finish(self, limit: float) -> tuple[float, int]:
        """Read the rest of the output and wait for the end; return seconds since the start and the exit code."""
        deadline = time.time() + limit
        while self.read_words(deadline - time.time()) and time.time() < deadline:
            pass
        if not has_ended(self._process.pid, max(0.0, deadline - time.time())):
            raise self.failed(f"did not end within {limit:.0f} s")
        return time.time() - self.begin, self._process.wait()

    def wake(self) -> None:
        """Continue after the command was stopped: nsenter stops with its child, but does not continue with it."""
        os.kill(self._process.pid, signal.SIGCONT)

    def failed(self, how: str) -> Failed:
        """An error with the end of the command's output."""
        words = " / ".join(self.words.decode(errors="replace").strip().splitlines()[-4:])
        return Failed(f"`{Path(self.argv[0]).name}` {how}: {words[-400:]}")

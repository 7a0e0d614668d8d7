"""The command lines that are compared, their environment, and running them under the reaper."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.experiment import Failed, Missing

BIN = Path(sys.executable).parent
SCRIPTS = Path(__file__).with_name("scripts")
LIMIT = 300.0
"""Timeout of a measured command in seconds; 32 ranks under torchrun take 50 s on two idle cores."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The reaper's report about a command."""

    begin: float
    end: float
    cpu: float
    """CPU seconds of the command and of everything it started."""

    @property
    def seconds(self) -> float:
        """Seconds from the start of the command to its end."""
        return self.end - self.begin


class Command:
    """A running command, with a directory for what its ranks write; leaving the block ends it."""

    def __init__(self, argv: Sequence[str | Path], folder: Path, *, env: dict[str, str] | None = None) -> None:
        self.argv = [str(word) for word in argv]
        self.folder = folder
        self.log = folder / "output"
        self._result = folder / "result"
        # No site packages, so that the helper starts fast and uses little CPU time itself.
        helper = [sys.executable, "-S", "-E", str(Path(__file__).with_name("reaper.py")), self._result, str(LIMIT)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*helper, *self.argv], stdout=log, stderr=log, env={**environment(folder), **(env or {})}, cwd=folder
            )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()  # the reaper then ends all its descendants
            self._process.wait(30)

    @property
    def running(self) -> bool:
        """Whether it is running."""
        return self._process.poll() is None

    def finish(self) -> Ended:
        """Wait for the command to end; it must succeed and leave no process behind."""
        try:
            self._process.wait(LIMIT + 30)
            said = json.loads(self._result.read_text())
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            raise self.failed(f"could not measure it ({error})") from None
        if not said["in_time"]:
            raise self.failed(f"did not end within {LIMIT:.0f} s")
        if said["code"] != 0:
            raise self.failed(f"ended with code {said['code']}")
        if said["left"]:
            raise self.failed(f"left {said['left']} processes behind")
        return Ended(begin=said["begin"], end=said["end"], cpu=said["cpu"])

    def failed(self, how: str) -> Failed:
        """An error with the end of the command's output."""
        words = " / ".join(self.log.read_text(errors="replace").strip().splitlines()[-4:])
        return Failed(f"`{Path(self.argv[0]).name}` {how}: {words[-400:]}")


def run(argv: Sequence[str | Path], folder: Path, *, env: dict[str, str] | None = None) -> Ended:
    """Run a command, which must succeed."""
    with Command(argv, folder, env=env) as command:
        return command.finish()


def muster(ranks: int, script: str, folder: Path, *options: str) -> list[str | Path]:
    """`muster run` with one of our scripts, which gets the directory as its argument."""
    return [BIN / "muster", "run", "--nproc", str(ranks), *options, SCRIPTS / script, folder]


def torchrun(ranks: int, script: str, folder: Path, *options: str) -> list[str | Path]:
    """`torchrun` with the same script, statically placed unless the options change that.

    This is its fastest mode, because the c10d rendezvous starts with a random pause of up to 0.3 s.
    """
    options = options or ("--master-port", str(free_port()))
    return [BIN / "torchrun", "--nproc-per-node", str(ranks), *options, SCRIPTS / script, folder]


def need_torchrun() -> None:
    """Raise Missing if torch is not installed; otherwise import it once, so that all rounds have a warm page cache."""
    if not (BIN / "torchrun").exists():
        raise Missing("not measured: torchrun is not installed for this Python")
    warm = [sys.executable, "-c", "import torch.distributed.run, torch._dynamo"]
    subprocess.run(warm, check=True, timeout=LIMIT, stderr=subprocess.DEVNULL)


def environment(state: Path) -> dict[str, str]:
    """The environment for both peers: one thread per rank, and no variables of other launchers."""
    launchers = ("TORCHELASTIC_", "OMPI_", "PMI_", "SLURM_", "MUSTER_", "MASTER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    path = os.pathsep.join([str(BIN), kept.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(state)}


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def times(folder: Path, pattern: str, ranks: int) -> list[float]:
    """The times that the ranks wrote; all of them must have written one."""
    found = [float(file.read_text()) for file in folder.glob(pattern)]
    if len(found) != ranks:
        raise Failed(f"only {len(found)} of {ranks} ranks wrote a time")
    return found


def wait_for_files(folder: Path, pattern: str, number: int, limit: float) -> None:
    """Wait until this many files exist and are not empty."""
    deadline = time.monotonic() + limit
    while sum(file.stat().st_size > 0 for file in folder.glob(pattern)) < number:
        if time.monotonic() > deadline:
            raise Failed(f"the {number} ranks did not start within {limit:.0f} s")
        time.sleep(0.02)

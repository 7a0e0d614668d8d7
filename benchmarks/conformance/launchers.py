"""Runs one program under torchrun and under Muster, and records what each rank did."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.conformance.programs import Program
from benchmarks.conformance.reading import normalize, read

BIN = Path(sys.executable).parent
MUSTER = os.environ.get("MUSTER_UNDER_TEST") or str(BIN / "muster")
TAG = "CONFORMANCE_RUN"
"""An environment variable of every process of a run, so that all can be found and ended."""
LIMIT = 90.0
"""Timeout of a run in seconds."""
LIMIT_OF_A_TRY = 30.0
"""Timeout in seconds for programs that sometimes hang under torchrun."""
LEAVING_LIMIT = 5.0
"""Seconds that processes may outlive their launcher."""

PLAIN = {"PATH": os.environ["PATH"], "HOME": os.path.expanduser("~"), "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""}

PYTHON = {
    sysconfig.get_path("stdlib"): "$STDLIB",
    sysconfig.get_path("platlib"): "$PACKAGES",
    sysconfig.get_path("purelib"): "$PACKAGES",
    sys.executable: "$PYTHON",
}
"""Where this Python is, and what stands for it in a record, which counts on other machines too."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a run."""

    code: int
    """The exit code of the rank that failed first (128 + n for signal n), 0 if none did, 124 if the run hung."""
    first: int | None = None
    """The rank that failed first."""
    streams: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The lines of `rank 0 stdout` and the like."""
    files: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The lines of the files that ranks wrote to $OUT."""
    left: tuple[str, ...] = ()
    """Processes that outlived their launcher."""
    said: str = ""
    """What the launcher printed."""


class Kept:
    """A kept host (docs/keep.md) whose zygote serves many runs, so that not each of them imports torch."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self._tag = uuid.uuid4().hex

    def ready(self) -> None:
        """Start a zygote if there is none, for example because the last program has ended it."""
        if not any(line.startswith("muster zygote") for line in self.processes().values()):
            self._command(("-H", "localhost", "--for", "5m"))

    def processes(self) -> dict[int, str]:
        """The agent and the zygote, and the processes of ranks that did not start another program."""
        return tagged(self._tag)

    def end(self) -> None:
        """End all of it."""
        self._command(("--end",))
        end_all(self.processes)

    def _command(self, argv: Sequence[str]) -> None:
        env = {**PLAIN, "XDG_STATE_HOME": str(self.state), TAG: self._tag}
        subprocess.run([MUSTER, "keep", *argv], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT)


class Run:
    """A launcher with one program in a new directory."""

    def __init__(self, program: Program, folder: Path, kept: Kept | None = None) -> None:
        self.program = program
        self.folder = folder
        self.work, self.out = folder / "work", folder / "out"
        for path in (self.work, self.out, folder / "tmp"):
            path.mkdir(parents=True)
        self.target = program.place_in(self.work)
        self.tag = uuid.uuid4().hex
        self._kept = kept
        self._before = kept.processes().keys() if kept else set[int]()
        self.state = kept.state if kept else folder / "state"
        places = {"OUT": str(self.out), "PWD": str(self.work), "XDG_STATE_HOME": str(self.state)}
        env = {**PLAIN, **places, TAG: self.tag, **program.env}
        self.env = {**env, "BEFORE": ":".join([*env, "BEFORE"])}

    def __call__(self, argv: Sequence[str], limit: float) -> tuple[int, tuple[str, ...]]:
        """Run it, and return the launcher's exit code and the processes left behind."""
        stdin = self.folder / "stdin"
        if self.program.stdin is not None:
            stdin.write_bytes(self.program.stdin)
        source = "/dev/null" if self.program.stdin is None else stdin
        with open(source, "rb") as stdin_file, (self.folder / "said").open("wb") as said:
            process = subprocess.Popen(
                argv, cwd=self.work, env=self.env, stdin=stdin_file, stdout=said, stderr=said, start_new_session=True
            )
            try:
                code = self._wait(process, limit)
                left = self._left(LEAVING_LIMIT) if code != 124 else {}
            finally:
                end_all(self._processes)
                process.wait(10)
        return code, tuple(left.values())

    @property
    def said(self) -> str:
        """What the launcher printed."""
        return (self.folder / "said").read_text(errors="replace")

    def files(self) -> dict[str, list[str]]:
        """What ranks wrote to $OUT."""
        found = sorted(path for path in self.out.rglob("*") if path.is_file() and not path.name.startswith("ready-"))
        return {str(path.relative_to(self.out)): self.lines(read(path)) for path in found}

    def lines(self, data: bytes) -> list[str]:
        """Output as lines, without parts that vary between runs."""
        places = {str(self.work): "$CWD", str(self.out): "$OUT", str(self.folder): "$FOLDER"}
        return normalize(data, {**PYTHON, **places})

    def _wait(self, process: subprocess.Popen[bytes], limit: float) -> int:
        deadline, to_send = time.monotonic() + limit, self.program.signal
        while time.monotonic() < deadline:
            if to_send and len(list(self.out.glob("ready-*"))) == self.program.ranks:
                process.send_signal(signal.Signals[to_send])
                to_send = ""
            try:
                return process.wait(0.05)
            except subprocess.TimeoutExpired:
                pass
        return 124

    def _left(self, limit: float) -> dict[int, str]:
        deadline = time.monotonic() + limit
        while (found := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _processes(self) -> dict[int, str]:
        found = tagged(self.tag)
        if self._kept is not None:  # a fork of its zygote shows the zygote's environment
            found.update({pid: line for pid, line in self._kept.processes().items() if pid not in self._before})
        return found


def end_all(processes: Callable[[], Mapping[int, str]]) -> None:
    """Kill processes until there are none."""
    deadline = time.monotonic() + 10
    while (found := processes()) and time.monotonic() < deadline:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def tagged(tag: str) -> dict[int, str]:
    """The command lines of the processes that have a tag in their environment."""
    found: dict[int, str] = {}
    mark = f"{TAG}={tag}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    found[int(folder.name)] = b" ".join(words)[:200].decode(errors="replace").strip()
            except OSError:
                pass
    return found


def under_torchrun(program: Program, folder: Path) -> Outcome:
    """Run a program under torchrun, with up to three attempts if torch sometimes fails it."""
    outcome = _under_torchrun(program, folder / "torchrun-0")
    for number in (1, 2) if program.fails_under_torchrun else ():
        if outcome.code != 0:
            outcome = _under_torchrun(program, folder / f"torchrun-{number}")
    return outcome


def _under_torchrun(program: Program, folder: Path) -> Outcome:
    run, logs = Run(program, folder), folder / "logs"
    options = ["--standalone", "--nproc-per-node", str(program.ranks), "-r", "3", "--log-dir", str(logs)]
    limit = LIMIT_OF_A_TRY if program.fails_under_torchrun else LIMIT
    code, left = run([str(BIN / "torchrun"), *options, *run.target], limit)
    first = None
    if code == 1 and (cause := re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", run.said, re.DOTALL)):
        first, ended = int(cause[1]), int(cause[2])
        code = ended if ended >= 0 else 128 - ended
    streams = {
        f"rank {path.parent.name} {path.stem}": run.lines(path.read_bytes())
        for path in logs.glob("*/attempt_0/*/*.log")
    }
    return Outcome(code=code, first=first, streams=streams, files=run.files(), left=left, said=run.said)


def under_muster(
    program: Program, folder: Path, options: Sequence[str] = (), *, hosts: int = 0, kept: Kept | None = None
) -> Outcome:
    """Run a program under Muster, optionally with more options of `muster run`, on lab hosts or on a kept host."""
    if kept is not None:
        kept.ready()
    run = Run(program, folder, kept)
    jobs = run.state / "muster" / "jobs"
    before = set(jobs.glob("*/"))
    where = ["--nproc", str(program.ranks)]
    if hosts:
        where += ["--lab", str(hosts), "--env", "OUT", "--env", "BEFORE", *(f"--env={name}" for name in program.env)]
    code, left = run([MUSTER, "run", *where, *program.muster, *options, *run.target], LIMIT)
    streams: dict[str, list[str]] = {}
    first = None
    ranks = program.ranks * (hosts or 1)
    for job in set(jobs.glob("*/")) - before:
        streams = {name: run.lines(data) for name, data in streams_of(job / "attempt-0", ranks).items()}
        state = json.loads((job / "state.json").read_bytes())
        failed = re.match(r"rank (\d+) ", state["sentence"])
        first = int(failed[1]) if failed and state["exit_code"] else None
    return Outcome(code=code, first=first, streams=streams, files=run.files(), left=left, said=run.said)


def streams_of(folder: Path, ranks: int) -> dict[str, bytes]:
    """What each rank of an attempt wrote to stdout and stderr: the log has both, and `order` has their order."""
    logs = {rank: folder / f"rank-{rank}.log" for rank in range(ranks)}
    rest = {rank: path.read_bytes() if path.exists() else b"" for rank, path in logs.items()}
    streams = {f"rank {rank} {name}": b"" for rank in range(ranks) for name in ("stdout", "stderr")}
    order = folder / "order"
    for line in order.read_text().splitlines() if order.exists() else []:
        rank, stream, size = (int(word) for word in line.split()[:3])
        streams[f"rank {rank} {'stdout' if stream == 1 else 'stderr'}"] += rest[rank][:size]
        rest[rank] = rest[rank][size:]
    return streams

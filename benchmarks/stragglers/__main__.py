"""`python -m benchmarks.stragglers`: slow each rank down in every way, and print whether it is named."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.stragglers.causes import CAUSES, Cause, Stage, put_gpus, quiet, quiet_group
from muster.lab import Lab

MUSTER = str(Path(sys.executable).with_name("muster"))
SCRIPT = Path(__file__).with_name("steps.py")
RANKS = 4
WELL_FOR = 12
"""Number of warmup steps before a rank is slowed down."""
LIMIT = 40
"""Number of steps within which it must be named."""

CLEAN = (
    ("nothing", ()),
    ("every rank varies by 20 %", ("--jitter", "0.2")),
    ("rank 0 works 5 % longer", ("--uneven", "0.05")),
    ("rank 0 evaluates for 1.5 s every 15 steps", ("--pause", "1.5")),
    ("rank 0 saves for 0.4 s every 5 steps", ("--pause", "0.4", "--every", "5")),
)

_NAMED = re.compile(
    r"muster: (?:ranks? (?P<ranks>[0-9, ]+) on .*|the network .* \(ranks? (?P<there>[0-9, ]+)\)) (?:is|are) "
    r"slowing the job down: (?P<reason>.*)"
)
_AGAIN = re.compile(r"muster: (?:ranks? [0-9, ]+ on|the network of) .* no longer slowing the job down")


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result for one slowed rank."""

    cause: Cause
    rank: int
    named: tuple[int, ...] = ()
    reason: str = ""
    steps: int | None = None
    """Number of steps until it was named."""
    wrong: bool = False
    """Whether another rank was named."""

    @property
    def right_reason(self) -> bool:
        """Whether the reported cause is right."""
        return self.cause.words in self.reason


class Job:
    """A job whose output is read line by line."""

    def __init__(self, stage: Stage, hosts: Sequence[int], *arguments: str) -> None:
        self.stage = stage
        self.step = -1
        self.lines: list[str] = []
        self._words: queue.Queue[str | None] = queue.Queue()
        where = (
            ["-H", ",".join(f"h{n + 1}:{ranks}" for n, ranks in enumerate(hosts))] if hosts else ["--nproc", str(RANKS)]
        )
        command = [MUSTER, "run", "--no-check", *where, str(SCRIPT), str(stage.folder), *arguments]
        if quiet_group().exists():
            command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(quiet_group() / "cgroup.procs"), *command]
        env = {**os.environ, "XDG_STATE_HOME": str(stage.folder), "CUDA_VISIBLE_DEVICES": ""}
        start: Callable[..., subprocess.Popen[str]] = subprocess.Popen
        if stage.lab is not None:
            start = functools.partial(stage.lab.popen, "h1")
        self._process = start(
            command,
            cwd=str(stage.folder),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._words.put(line.rstrip("\n"))
        self._words.put(None)

    def next(self, limit: float = 30.0) -> str | None:
        """The next line, or None if the job has ended."""
        line = self._words.get(timeout=limit)
        if line is not None:
            self.lines.append(line)
            number = re.search(r"\bstep (\d+)$", line)
            if number:
                self.step = int(number[1])
        return line

    def until(self, pattern: re.Pattern[str], steps: int) -> re.Match[str] | None:
        """Read until a line matches, for at most this many steps."""
        last = self.step + steps
        while self.step < last:
            line = self.next()
            if line is None:
                return None
            found = pattern.search(line)
            if found:
                return found
        return None

    def end(self) -> None:
        """Stop the job if it is running."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def stage_for(hosts: Sequence[int], gpus: int) -> Generator[Stage]:
    """This machine, or lab hosts with a shared directory."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        if not hosts:
            yield Stage(folder=folder)
            return
        with Lab(len(hosts), bind=(folder, Path(__file__).parents[1]), gpus=gpus) as lab:
            if gpus:
                put_gpus(lab)
            if quiet_group().exists():
                for host in lab.names:
                    move = 'for process in /proc/[0-9]*; do echo "${process#/proc/}" > "$0"; done'
                    lab.run(host, ["sh", "-c", move, str(quiet_group() / "cgroup.procs")], timeout=10)
            yield Stage(folder=folder, lab=lab)


def try_cause(cause: Cause) -> list[Score]:
    """Run one job in which one rank after the other is slowed down and restored."""
    scores: list[Score] = []
    with stage_for(cause.hosts, cause.gpus) as stage:
        job = Job(stage, cause.hosts, "--steps", "100000", *cause.arguments)
        try:
            false = job.until(_NAMED, WELL_FOR)
            if false:
                print(f"  false alarm before the slowdown: {false[0]}", file=sys.stderr)
            for rank in range(sum(cause.hosts) or RANKS):
                scores.append(slow_down(job, cause, rank))
                print(line(scores[-1]), file=sys.stderr, flush=True)
                if scores[-1].named:
                    job.until(_AGAIN, LIMIT)
        finally:
            job.end()
    return scores


def slow_down(job: Job, cause: Cause, rank: int) -> Score:
    """Slow a rank down and wait until it is named."""
    with cause.make(job.stage, rank):
        begin = job.step
        found = job.until(_NAMED, LIMIT)
    if found is None:
        return Score(cause=cause, rank=rank)
    named = tuple(int(number) for number in (found["ranks"] or found["there"]).split(","))
    return Score(
        cause=cause, rank=rank, named=named, reason=found["reason"], steps=job.step - begin, wrong=named != (rank,)
    )


def line(score: Score) -> str:
    """The result of one rank in one line."""
    how = "not named" if not score.named else f"named {score.named} after {score.steps} steps: {score.reason}"
    return f"{score.cause.name}, rank {score.rank}: {how}"


def clean_runs(count: int) -> list[str]:
    """False alarms in jobs without a straggler."""
    alarms: list[str] = []
    for number in range(count):
        name, arguments = CLEAN[number % len(CLEAN)]
        with stage_for((), 0) as stage:
            job = Job(stage, (), "--steps", "80", *arguments)
            try:
                while job.next() is not None:
                    pass
            finally:
                job.end()
            said = [line for line in job.lines if _NAMED.search(line)]
            alarms += [f"{name}: {line}" for line in said]
            print(f"clean ({name}): {len(said)} named, {job.step + 1} steps", file=sys.stderr, flush=True)
    return alarms


def table(scores: Sequence[Score], left_out: Sequence[str], clean: int, alarms: Sequence[str]) -> str:
    """The scoreboard, in Markdown."""
    rows = ["| cause | named | right rank | right reason | steps until named (median, most) |", "|---|---|---|---|---|"]
    for cause in dict.fromkeys(score.cause for score in scores):
        own = [score for score in scores if score.cause is cause]
        named = [score for score in own if score.named]
        steps = [score.steps for score in named if score.steps is not None]
        took = f"{median(steps):g}, {max(steps)}" if steps else "-"
        right = sum(not score.wrong for score in named)
        reasons = sum(score.right_reason for score in named)
        rows.append(f"| {cause.name} | {len(named)} of {len(own)} | {right} | {reasons} | {took} |")
    rows += [f"| {text} | | | | |" for text in left_out]
    rows.append(f"\n{clean} runs in which nobody is slow: {len(alarms)} false alarms.")
    return "\n".join([*rows, *alarms])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the selected causes; the exit code is 1 if a rank was missed or misattributed, or for a false alarm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stragglers", description=__doc__)
    parser.add_argument("--cause", action="append", help="a word of the causes to try (default: all)")
    parser.add_argument(
        "--clean", type=int, default=len(CLEAN), help="runs in which nobody is slow (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    scores: list[Score] = []
    left_out: list[str] = []
    begin = time.monotonic()
    with quiet():
        for cause in CAUSES:
            if options.cause and not any(word in cause.name for word in options.cause):
                continue
            why = cause.needs()
            if why:
                left_out.append(f"{cause.name}: not tried, {why}")
            else:
                scores += try_cause(cause)
        alarms = clean_runs(options.clean)
    print(table(scores, left_out, options.clean, alarms))
    print(f"took {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return int(bool(alarms) or any(not score.named or score.wrong for score in scores))


if __name__ == "__main__":
    sys.exit(main())

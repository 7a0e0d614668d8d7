"""`python -m benchmarks.chaos`: random jobs under random faults, round after round."""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import machine
from benchmarks.chaos.judge import judge
from benchmarks.chaos.observation import Observation
from benchmarks.chaos.plan import Plan, plan_of
from benchmarks.chaos.play import play
from benchmarks.chaos.scene import Running, Scene

LANES = 4
"""Rounds that run side by side; most of a round is waiting."""


@dataclass
class Tally:
    """What became of all rounds."""

    rounds: int = 0
    faults: int = 0
    bad: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    engines: dict[str, int] = field(default_factory=dict[str, int])
    seconds: list[float] = field(default_factory=list[float])


class Seeds:
    """Hands out seeds until there are enough rounds, or the time is over."""

    def __init__(self, first: int, rounds: int | None, until: float | None) -> None:
        self._seeds: Iterator[int] = itertools.count(first) if rounds is None else iter(range(first, first + rounds))
        self._until = until
        self._lock = threading.Lock()

    def next(self) -> int | None:
        """The next seed; None if there is none."""
        with self._lock:
            if self._until is not None and time.monotonic() > self._until:
                return None
            return next(self._seeds, None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run rounds; the exit code is 1 if any has a violation."""
    options = parse(argv)
    about = machine.describe()
    first = options.seed if options.seed is not None else int(time.time()) % 10**6 * 1000
    rounds = options.rounds or (1 if options.seed is not None and options.minutes is None else None)
    until = time.monotonic() + options.minutes * 60 if options.minutes is not None else None
    seeds, tally, lock = Seeds(first, rounds, until), Tally(), threading.Lock()
    lanes = min(options.lanes, rounds or options.lanes)
    folder = Path(tempfile.mkdtemp(prefix="muster-chaos-"))
    with ThreadPoolExecutor(lanes) as pool:
        for one in [pool.submit(lane, folder, seeds, tally, lock) for _ in range(lanes)]:
            one.result()
    if not tally.bad:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"\n{tally.rounds} rounds with {tally.faults} faults, {len(tally.bad)} with a violation;"
        f" {', '.join(f'{count} {name}' for name, count in sorted(tally.engines.items()))}"
        f"\n{about['Muster']}, {about['CPU']}, {about['date']}, load {about['load before']} before"
        f" and {machine.load()} after"
    )
    for seed, problems in sorted(tally.bad.items()):
        print(f"--seed {seed}: {'; '.join(problems)}")
    return int(bool(tally.bad))


def lane(folder: Path, seeds: Seeds, tally: Tally, lock: threading.Lock) -> None:
    """Play rounds in one lab until there are no more seeds."""
    scenes: dict[str, Scene] = {}
    while (seed := seeds.next()) is not None:
        plan = plan_of(seed)
        begin = time.monotonic()
        jobs: list[Running] = []
        place = plan.engine if plan.engine in ("slurm", "container") else "ssh"
        try:
            if place not in scenes:
                scenes[place] = Scene(folder, place)
            seen, jobs = play(scenes[place], plan)
            problems = judge(plan, seen)
        except Exception as error:
            seen, problems = None, [f"the round itself failed: {error!r}"]
            traceback.print_exc()
            if scene := scenes.pop(place, None):
                scene.close()
        seconds = time.monotonic() - begin
        with lock:
            tally.rounds += 1
            tally.faults += sum(one is not None for one in seen.struck) if seen else 0
            tally.engines[plan.engine] = tally.engines.get(plan.engine, 0) + 1
            tally.seconds.append(seconds)
            if problems:
                tally.bad[seed] = problems
            report(plan, seen, problems, seconds, [str(job.folder) for job in jobs])
        if not problems:
            for job in jobs:
                scenes[place].forget(job)
    for scene in scenes.values():
        scene.close()


def report(plan: Plan, seen: Observation | None, problems: list[str], seconds: float, folders: list[str]) -> None:
    """Print one round."""
    code = "-" if seen is None else seen.code
    hits = "" if seen is None else f", {sum(one is not None for one in seen.struck)} of {len(seen.struck)} faults hit"
    print(
        f"{'VIOLATION' if problems else 'ok'} --seed {plan.seed}: {plan}; exit code {code}{hits} ({seconds:.1f} s)",
        flush=True,
    )
    for problem in problems:
        print(f"    {problem}", flush=True)
    if problems and seen:
        indented = "".join(f"    | {line}\n" for line in seen.output.splitlines())
        print(f"{indented}    struck: {seen.struck}\n    files: {', '.join(folders)}", flush=True)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos",
        description="Run random jobs on lab hosts under random faults, and check what is left. Needs root.",
        epilog="example: python -m benchmarks.chaos --minutes 10\n         python -m benchmarks.chaos --seed 4711",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("--minutes", metavar="N", type=float, help="start new rounds for this long")
    p.add_argument("--rounds", metavar="N", type=int, help="run this many rounds, with consecutive seeds")
    p.add_argument("--seed", metavar="S", type=int, help="the first seed; alone, run only its round")
    p.add_argument("--lanes", metavar="N", type=int, default=LANES, help=f"rounds side by side (default: {LANES})")
    options = p.parse_args(argv)
    if options.minutes is None and options.rounds is None and options.seed is None:
        p.error("give --minutes, --rounds or --seed")
    if options.lanes < 1 or (options.rounds is not None and options.rounds < 1):
        p.error("--lanes and --rounds must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())

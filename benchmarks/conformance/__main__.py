"""`python -m benchmarks.conformance`: run programs many times under Muster, and print how often each failed.

One run under torchrun with the same number of ranks is the reference. No run is repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.conformance.compare import unexplained
from benchmarks.conformance.launchers import Outcome, under_muster, under_torchrun
from benchmarks.conformance.programs import Program, load_all
from benchmarks.conformance.recorded import record

HELLO = "groups_hello"


@dataclass(frozen=True, kw_only=True)
class Series:
    """A program, and how it is run many times."""

    program: Program
    runs: int
    hosts: int = 0
    """Lab hosts, 0 for this machine; `program.ranks` is the number on each."""
    options: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The ranks and the hosts, for the table."""
        place = f"{self.hosts} lab hosts x " if self.hosts else ""
        return " ".join([f"{place}{self.program.ranks} ranks", *self.options])


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of a series."""

    series: Series
    problems: tuple[str, ...]
    """The first difference of each run that failed."""
    median: float
    worst: float

    @property
    def row(self) -> str:
        """A line of the table."""
        hung = sum("Muster 124" in problem for problem in self.problems)
        what = self.problems[0][:100].replace("|", "/") if self.problems else ""
        name, series = self.series.program.name, self.series
        cells = [
            name,
            str(series.program.row or ""),
            series.where,
            str(series.runs),
            str(len(self.problems)),
            str(hung),
        ]
        return f"| {' | '.join([*cells, f'{self.median:.1f}', f'{self.worst:.1f}', what])} |"


HEADER = "| program | row | ranks | runs | failed | hung | median s | worst s | first failure |\n|" + "---|" * 9


def main(argv: Sequence[str] | None = None) -> int:
    """Run the selected series; the exit code is 1 if any run failed."""
    programs = load_all()
    options = parse(argv, programs)
    if options.record:
        chosen = [programs[name] for name in options.names] or programs.values()
        print(f"changed: {', '.join(record(chosen, options.jobs)) or 'no record'}")
        return 0
    series = plan(options, programs)
    scores: list[Score] = []
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        for number, one in enumerate(series):
            scores.append(
                run(one, Path(folder) / str(number), options.jobs, Path(options.keep) if options.keep else None)
            )
            print(scores[-1].row, flush=True)
    failed = sum(len(score.problems) for score in scores)
    print(f"\n{failed} of {sum(score.series.runs for score in scores)} runs failed")
    return int(failed > 0)


def parse(argv: Sequence[str] | None, programs: dict[str, Program]) -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.conformance",
        description="Run programs of tests/lab/torchrun/programs many times under Muster, and count the failures.",
        epilog="example: python -m benchmarks.conformance groups_hello --ranks 8 --runs 200",
        allow_abbrev=False,
    )
    p.add_argument("names", metavar="PROGRAM", nargs="*", help="names of programs (default: all)")
    p.add_argument("--rows", metavar="N", help="all programs of these rows of held-out.md: 4 or 2-16")
    p.add_argument("--acceptance", action="store_true", help="the series that a release must pass")
    p.add_argument("--ranks", metavar="N", type=int, help="ranks per host (default: as declared by the program)")
    p.add_argument("--runs", metavar="N", type=int, help="runs per program (default: as declared by it, or 50)")
    p.add_argument("--lab", metavar="HOSTS", type=int, default=0, help="run on this many lab hosts")
    p.add_argument("--no-zygote", action="store_true", help="start each rank as a fresh interpreter")
    p.add_argument("--option", metavar="OPTION", action="append", default=[], help="another option of `muster run`")
    p.add_argument("--jobs", metavar="N", type=int, default=1, help="parallel runs, to keep the machine busy")
    p.add_argument("--keep", metavar="DIR", help="keep what the launcher printed in failed runs in this directory")
    p.add_argument("--record", action="store_true", help="write what torchrun does to tests/golden/torchrun instead")
    options = p.parse_args(argv)
    if unknown := [name for name in options.names if name not in programs]:
        p.error(f"unknown program: {', '.join(unknown)}")
    return options


def plan(options: argparse.Namespace, programs: dict[str, Program]) -> list[Series]:
    """The series selected on the command line."""
    more = (*(["--no-zygote"] if options.no_zygote else []), *options.option)
    if options.acceptance:
        return acceptance(programs, more)
    chosen = [programs[name] for name in options.names] or list(programs.values())
    if options.rows:
        first, _, last = options.rows.partition("-")
        chosen = [program for program in chosen if int(first) <= program.row <= int(last or first)]
    return [
        Series(
            program=dataclasses.replace(program, ranks=options.ranks or program.ranks),
            runs=options.runs or program.runs,
            hosts=options.lab,
            options=more,
        )
        for program in chosen
        if not program.missing
    ]


def acceptance(programs: dict[str, Program], options: tuple[str, ...]) -> list[Series]:
    """The three-line hello 8 ranks x 200 runs, 2 x 200, two lab hosts x 100; then every other row of held-out.md."""
    hello = programs[HELLO]
    ways = [(8, 0, 200), (2, 0, 200), (4, 0, 200), (2, 2, 100)]
    series = [
        Series(program=dataclasses.replace(hello, ranks=ranks), runs=runs, hosts=hosts, options=options)
        for ranks, hosts, runs in ways
    ]
    rows = sorted((p for p in programs.values() if p.row > 1 and not p.missing), key=lambda p: (p.row, p.name))
    return series + [Series(program=program, runs=program.runs, options=options) for program in rows]


def run(series: Series, folder: Path, jobs: int, keep: Path | None) -> Score:
    """All runs of a series."""
    program = series.program
    hosts = series.hosts or 1
    reference = None
    if not program.only_muster:
        reference = under_torchrun(dataclasses.replace(program, ranks=program.ranks * hosts), folder / "reference")

    def once(number: int) -> tuple[str, float]:
        begin = time.monotonic()
        place = folder / f"run-{number}"
        outcome = under_muster(program, place, series.options, hosts=series.hosts)
        seconds = time.monotonic() - begin
        problems = problems_of(series, reference, outcome)
        if problems and keep:
            keep.mkdir(parents=True, exist_ok=True)
            text = "\n".join([*problems, "--- Muster printed", outcome.said])
            (keep / f"{program.name}-{program.ranks}-{series.hosts}-{number}.txt").write_text(text)
        shutil.rmtree(place, ignore_errors=True)
        return problems[0] if problems else "", seconds

    with ThreadPoolExecutor(jobs) as pool:
        done = list(pool.map(once, range(series.runs)))
    seconds = sorted(seconds for _, seconds in done)
    problems = tuple(problem for problem, _ in done if problem)
    return Score(series=series, problems=problems, median=seconds[len(seconds) // 2], worst=seconds[-1])


def problems_of(series: Series, reference: Outcome | None, outcome: Outcome) -> list[str]:
    """Problems of a run; on lab hosts only the exit code and stdout count, because they do not share $OUT."""
    program = series.program
    if series.hosts and reference is not None:
        program = dataclasses.replace(program, without_stderr=True)
        reference, outcome = (dataclasses.replace(one, files={}) for one in (reference, outcome))
    return unexplained(program, reference, outcome)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # context managers end running commands
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

"""`python -m benchmarks`: measure, print the table, and after a full run write it to RESULTS.md."""

from __future__ import annotations

import argparse
import compileall
import json
import signal
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.experiment import Experiment, Failed, Missing
from benchmarks.figure import svg
from benchmarks.published import put_between
from benchmarks.rows import experiments
from benchmarks.table import Result, Sample, markdown

HERE = Path(__file__).parent
BEGIN, END = "<!-- measured: make bench writes this -->", "<!-- end of measured -->"
FEWEST_ROUNDS = 5
"""Minimum number of rounds for a result that is kept."""

NOTES = """\
Each round runs Muster and then its peer; no round is excluded. The values are medians of {rounds} rounds
(`muster --help`: four times as many); a ratio is computed within each round, and its median counts. Both run the same
script with the same Python and OMP_NUM_THREADS=1. CPU seconds are those of all processes that a command started.
torchrun places its ranks statically (no rendezvous); for the restart it uses `--standalone` with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, because with its defaults the second attempt of gloo fails. On the lab hosts
Muster (`--no-zygote`) and mpirun start the same Python script, which imports nothing.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the selected rows; the exit code is 1 if a measurement failed."""
    everything = experiments()
    names = [row.name for experiment in everything for row in experiment.rows]
    options = parse(argv, names)
    chosen: list[str] = options.only or names
    about = machine.describe()
    # As pip does: where PYTHONDONTWRITEBYTECODE is set, every command would compile all of Muster.
    compileall.compile_dir(HERE.parent / "src", quiet=2)
    results: list[Result] = []
    for experiment in everything:
        if any(row.name in chosen for row in experiment.rows):
            results += measure(experiment, chosen, options.rounds)
    about["load after"] = machine.load()
    document = page(about, results, options.rounds)
    print(document)
    save_samples(about, results)
    if chosen == names and options.rounds >= FEWEST_ROUNDS:
        keep(document, about, results)
    return int(any(result.verdict.startswith("failed") for result in results))


def keep(document: str, about: dict[str, str], results: Sequence[Result]) -> None:
    """Write the results to RESULTS.md, and to the table and the figure of docs/measurements/speed.md."""
    root = HERE.parent
    (HERE / "RESULTS.md").write_text(document + "\n")
    (root / "docs" / "first-collective.svg").write_text(svg(results))
    where = f"{about['CPU']}, {about['memory']}, torch {about['torch']}, {about['date']}"
    text = f"{markdown(results)}\n\nMedians on {where}; [how they were measured](../reference/scoreboards.md)."
    put_between(root / "docs" / "measurements" / "speed.md", BEGIN, END, text)


def parse(argv: Sequence[str] | None, names: Collection[str]) -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare Muster with torchrun and mpirun on this machine.",
        epilog=f"rows: {', '.join(names)}\nexample: python -m benchmarks --only first_8,help --rounds 7",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("--only", metavar="ROWS", help="measure only these rows, separated by commas")
    p.add_argument("--rounds", metavar="N", type=int, default=FEWEST_ROUNDS, help="rounds per row (default: 5)")
    options = p.parse_args(argv)
    if options.rounds < 1:
        p.error("--rounds must be at least 1")
    if options.only is not None:
        options.only = options.only.split(",")
        if unknown := [name for name in options.only if name not in names]:
            p.error(f"unknown row {', '.join(unknown)}; the rows are {', '.join(names)}")
    return options


def measure(experiment: Experiment, chosen: Collection[str], rounds: int) -> list[Result]:
    """Run all rounds of an experiment and return the results of its chosen rows."""
    rows = [row for row in experiment.rows if row.name in chosen]
    samples: dict[str, list[Sample]] = {row.name: [] for row in rows}
    problem = ""
    try:
        with experiment:
            for number in range(rounds * experiment.repeats):
                begin = time.monotonic()
                measured = experiment.round()
                for name in samples.keys() & measured.keys():
                    samples[name].append(measured[name])
                show_progress(number + 1, samples, time.monotonic() - begin)
    except Missing as error:
        problem = str(error)
    except Failed as error:
        problem = f"failed: {error}".replace("|", "/")
    if problem:
        print(f"{', '.join(samples)}: {problem}", file=sys.stderr)
    reasons = {name: problem or experiment.not_measured.get(name, "") for name in samples}
    return [Result(row=row, samples=tuple(samples[row.name]), problem=reasons[row.name]) for row in rows]


def show_progress(number: int, samples: dict[str, list[Sample]], seconds: float) -> None:
    """Print one line per round on stderr, because this takes minutes."""
    said: list[str] = []
    for name, rounds in samples.items():
        for last in rounds[-1:]:
            peer = "" if last.peer is None else f" to {last.peer:.2f}"
            said.append(f"{name} {last.muster:.2f}{peer}")
    print(f"round {number} ({seconds:.0f} s): {', '.join(said)}", file=sys.stderr, flush=True)


def page(about: dict[str, str], results: Sequence[Result], rounds: int) -> str:
    """The table, with a description of the machine."""
    lines = "\n".join(f"- {name}: {value}" for name, value in about.items())
    return f"# Measured\n\n{markdown(results)}\n\n{NOTES.format(rounds=rounds)}\n{lines}"


def save_samples(about: dict[str, str], results: Sequence[Result]) -> None:
    """Save all samples of the newest run for closer inspection."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    data = {"machine": about, "rows": {result.row.name: result.as_data() for result in results}}
    (folder / "samples.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # context managers end running commands
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

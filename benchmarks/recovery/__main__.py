"""`python -m benchmarks.recovery`: inject faults into jobs on lab hosts, and print what became of them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks import machine
from benchmarks.experiment import Failed
from benchmarks.published import put_between
from benchmarks.recovery.matrix import matrix
from benchmarks.recovery.peers import TORCHRUN, Peer, ft_launcher
from benchmarks.recovery.rows import ROWS, WORKERS, Row
from benchmarks.recovery.stage import Stage

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "recovery.md"
MARKS = {
    name: (f"<!-- {name}: python -m benchmarks.recovery writes this -->", f"<!-- end of {name} -->")
    for name in ("figures", "peers", "matrix", "slurm")
}


@dataclass(kw_only=True)
class Result:
    """All rounds of one row."""

    row: Row
    seconds: list[float] = field(default_factory=list[float])
    good: int = 0
    problems: list[str] = field(default_factory=list[str])
    peers: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    @property
    def rounds(self) -> int:
        """How often it was run."""
        return self.good + len(self.problems)

    @property
    def reached(self) -> bool:
        """Whether every round succeeded and was fast enough."""
        slow = self.row.must is not None and bool(self.seconds) and max(self.seconds) > self.row.must
        return not self.problems and not slow


def main(argv: Sequence[str] | None = None) -> int:
    """Run the selected rows; the exit code is 1 if a round failed or was too slow."""
    options = parse(argv)
    about = machine.describe()
    with tempfile.TemporaryDirectory(prefix="muster-recovery-") as folder:
        if options.matrix:
            tables = {
                "slurm" if options.slurm else "matrix": matrix(
                    Path(folder), options.rounds, options.only, slurm=options.slurm
                )
            }
        else:
            tables = figures(Path(folder), options)
    about["load after"] = machine.load()
    where = f"{about['CPU']}, {about['memory']}, torch {about['torch']}, {about['date']}"
    where += f", load {about['load before']} before and {about['load after']} after"
    bad = False
    for name, (table, failed) in tables.items():
        text = f"{table}\n\nMeasured on {where}."
        print(f"\n{text}")
        bad = bad or failed
        if options.write and table:
            put_between(PAGE, *MARKS[name], text)
    return int(bad)


def figures(folder: Path, options: argparse.Namespace) -> dict[str, tuple[str, bool]]:
    """Run every chosen row in each round, Muster and then its peers, in one lab."""
    peers = [TORCHRUN, *([ft_launcher(options.ft_launcher)] if options.ft_launcher else [])]
    venv = [options.ft_launcher.parent.parent] if options.ft_launcher else []
    results = [Result(row=row) for row in ROWS if not options.only or row.name in options.only]
    with Stage(WORKERS, folder, *venv) as stage:
        for number in range(options.rounds):
            for result in results:
                play(stage, result)
                if number < options.peers:
                    play_peers(stage, result, peers)
    tables = {"figures": (table(results), not all(result.reached for result in results))}
    if options.peers:
        tables["peers"] = (peer_table(results, peers), False)
    return tables


def play(stage: Stage, result: Result) -> None:
    """Run a row once with Muster."""
    begin = time.monotonic()
    try:
        seconds = result.row.play(stage)
        result.good += 1
        said = "as expected"
        if seconds is not None:
            result.seconds.append(seconds)
            said = f"{seconds:.2f} s"
    except Failed as error:
        said = str(error).replace("|", "/")
        result.problems.append(said)
    stage.restore()
    print(f"{result.row.name}: {said} ({time.monotonic() - begin:.0f} s)", file=sys.stderr, flush=True)


def play_peers(stage: Stage, result: Result, peers: Sequence[Peer]) -> None:
    """Run the same with all peers."""
    for peer in peers if result.row.peer else ():
        assert result.row.peer
        try:
            said = result.row.peer(stage, peer)
        except Failed as error:
            said = f"not measured: {error}".replace("|", "/")
        result.peers.setdefault(peer.name, []).append(said)
        stage.restore()
        print(f"{result.row.name}, {peer.name}: {said}", file=sys.stderr, flush=True)


def table(results: Sequence[Result]) -> str:
    """The figures of Muster."""
    lines = ["| event | until | good | median | slowest | must | goal |", "|---|---|---|---|---|---|---|"]
    for result in results:
        row = result.row
        cells = [row.event, row.until, f"{result.good} of {result.rounds}"]
        cells += [f"{figure(result.seconds):.2f} s" if result.seconds else "" for figure in (median, max)]
        cells += ["" if limit is None else f"≤ {limit:g} s" for limit in (row.must, row.goal)]
        lines.append(f"| {' | '.join(cells)} |")
    problems = [f"- {result.row.event}: {problem}" for result in results for problem in result.problems]
    return "\n".join([*lines, *(["", *problems] if problems else [])])


def peer_table(results: Sequence[Result], peers: Sequence[Peer]) -> str:
    """The same events with peers, every round."""
    names = [peer.name for peer in peers]
    lines = [f"| event | Muster | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for result in results:
        if result.peers:
            own = f"{median(result.seconds):.1f} s" if result.seconds else f"{result.good} of {result.rounds} good"
            theirs = [", ".join(result.peers.get(name, [])) for name in names]
            lines.append(f"| {' | '.join([result.row.event, own, *theirs])} |")
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery",
        description="Inject faults into jobs of 8 ranks on 4 lab hosts and a spare, and measure recovery. Needs root.",
        epilog=f"rows: {', '.join(row.name for row in ROWS)}\n"
        "example: python -m benchmarks.recovery --only power,agent --rounds 5 --peers 0",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("--rounds", metavar="N", type=int, default=5, help="rounds per row (default: 5)")
    p.add_argument("--only", metavar="ROWS", type=lambda text: text.split(","), help="only these, separated by commas")
    p.add_argument("--peers", metavar="N", type=int, default=1, help="rounds in which torchrun runs too (default: 1)")
    p.add_argument("--ft-launcher", metavar="PATH", type=Path, help="also run this ft_launcher of NVRx")
    p.add_argument("--matrix", action="store_true", help="instead, every fault with every way to continue")
    p.add_argument("--slurm", action="store_true", help="the matrix under Slurm; only the faults that make sense there")
    p.add_argument("--write", action="store_true", help="put the tables into docs/measurements/recovery.md")
    options = p.parse_args(argv)
    if options.rounds < 1:
        p.error("--rounds must be at least 1")
    known = {row.name for row in ROWS}
    if not options.matrix and options.only and (unknown := [name for name in options.only if name not in known]):
        p.error(f"unknown row {', '.join(unknown)}; the rows are {', '.join(row.name for row in ROWS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())

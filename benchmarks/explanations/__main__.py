"""`python -m benchmarks.explanations`: inject every fault, check whether it is explained, and print the table."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.explanations.faults import FAULTS, ORDINARY, with_every_culprit
from benchmarks.explanations.trial import Score, try_fault
from benchmarks.published import put_between
from muster.lab import Lab

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "failure-reports.md"
BEGIN, END = "<!-- explanations: python -m benchmarks.explanations writes this -->", "<!-- end of explanations -->"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the selected faults; the exit code is 1 if a fault was not explained correctly."""
    options = parse(argv)
    faults = [one for fault in FAULTS for one in (with_every_culprit(fault) if options.every else (fault,))]
    chosen = [fault for fault in faults if not options.rows or fault.row in options.rows]
    scores: list[Score] = []
    with tempfile.TemporaryDirectory() as folder, Lab(3, bind=(folder,)) as lab:
        for fault in [*chosen, *[ORDINARY] * options.ordinary]:
            scores.append(try_fault(lab, fault, Path(folder)))
            print(f"{line(scores[-1:])}  {fault.name}", file=sys.stderr, flush=True)
            if not scores[-1].right:
                print(scores[-1].said, file=sys.stderr)
    text = page(scores)
    print(text)
    if options.write:
        put_between(PAGE, BEGIN, END, text)
    return int(not all(score.right for score in scores))


def page(scores: Sequence[Score]) -> str:
    """The table, with one line per fault for all culprits, and a summary."""
    by_title: dict[tuple[int, str], list[Score]] = {}
    for score in scores:
        by_title.setdefault((score.fault.row, score.fault.title), []).append(score)
    rows = [score for score in scores if score.fault.why]
    ordinary = [score for score in scores if not score.fault.why]
    lines = [
        "| row | fault | runs | found | rank or host named | right explanation | right fix | seconds |",
        "|---|---|---|---|---|---|---|---|",
        *(line(group) for group in by_title.values()),
        "",
        f"{sum(score.right for score in rows)} of {len(rows)} failures were explained as they must be.",
    ]
    if ordinary:
        silent = sum(score.right for score in ordinary)
        lines.append(
            f"{silent} of {len(ordinary)} ordinary exceptions were left without an explanation, as they must be."
        )
    return "\n".join(lines)


def line(scores: Sequence[Score]) -> str:
    """One row of the table."""
    fault = scores[0].fault
    cells = [str(fault.row) if fault.row else "", fault.title, str(len(scores))]
    for values in (
        [score.found for score in scores],
        [score.named for score in scores],
        [score.words for score in scores],
        [score.fix for score in scores],
    ):
        cells.append("yes" if all(values) else f"{sum(values)} of {len(values)}" if any(values) else "NO")
    cells.append(f"{max(score.seconds for score in scores):.1f}")
    return f"| {' | '.join(cells)} |"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.explanations",
        description="Inject every failure that ends a running job on lab hosts and check its explanation. Needs root.",
        epilog="example: python -m benchmarks.explanations --rows 46,51",
    )
    p.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], help="only these rows")
    p.add_argument("--every", action="store_true", help="run each fault with every rank as the culprit")
    p.add_argument("--ordinary", type=int, default=1, metavar="N", help="also raise an ordinary exception N times")
    p.add_argument("--write", action="store_true", help="put the table into docs/measurements/failure-reports.md")
    return p.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks.scoreboard`: inject every fault, check whether it is found, and print the table."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.published import put_between
from benchmarks.scoreboard.fault import Fault
from benchmarks.scoreboard.faults import BEFORE_LAUNCH, FAULTS
from benchmarks.scoreboard.stage import HOSTS, Stage
from muster.lab import Lab

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "checks.md"
BEGIN, END = "<!-- scoreboard: python -m benchmarks.scoreboard writes this -->", "<!-- end of scoreboard -->"


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of one fault."""

    fault: Fault
    found: bool = False
    wrong: tuple[str, ...] = ()
    """Healthy hosts that were named."""
    right: bool = False
    fix: str = ""
    seconds: float = 0.0
    problem: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the selected faults; the exit code is 1 if one was missed or misattributed, or for a false alarm."""
    options = parse(argv)
    chosen = [fault for fault in FAULTS if not options.rows or fault.row in options.rows]
    scores: list[Score] = []
    for fault in chosen:
        scores.append(try_fault(fault))
        print(line(scores[-1]), file=sys.stderr, flush=True)
    alarms = clean_runs(options.clean)
    text = page(scores, options.clean, alarms) + (speeds() if options.clean else "")
    print(text)
    if options.write:
        put_between(PAGE, BEGIN, END, text)
    return int(bool(alarms) or any(not score.found or score.wrong for score in scores))


def try_fault(fault: Fault) -> Score:
    """Start a new lab, inject the fault, check, apply the fix, and check again."""
    try:
        with Lab(len(HOSTS), gpus=fault.gpus) as lab:
            stage = Stage(lab, deep=fault.deep)
            fault.inject(stage)
            report = stage.check(fault.options, fault.script, fault.env)
            mine = report.of(fault.row)
            named = {host for finding in mine for host in finding["hosts"]}
            score = Score(
                fault=fault,
                found=bool(mine),
                wrong=tuple(sorted(report.blamed - set(fault.at))),
                right=named == set(fault.at),
                seconds=report.seconds,
            )
            lines = list(dict.fromkeys(finding["type"] for finding in mine))
            return replace(score, fix=try_fix(stage, fault, lines))
    except RuntimeError as error:
        return Score(fault=fault, problem=str(error))


def try_fix(stage: Stage, fault: Fault, lines: list[str]) -> str:
    """Whether running the printed fix removes the finding."""
    if not lines:
        return ""
    if fault.not_run:
        return f"not run: {fault.not_run}"
    if not lines[0]:
        return "text only"
    try:
        return "yes" if not stage.apply_fix(fault, lines[0]).of(fault.row) else "no"
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return "no"


def clean_runs(count: int) -> list[str]:
    """False alarms on healthy hosts."""
    alarms: list[str] = []
    if count:
        with Lab(4) as lab:
            stage = Stage(lab)
            for number in range(count):
                begin = time.monotonic()
                report = stage.check((), ("train.py",))
                alarms += [f"{finding['hosts']}: {finding['what']}" for finding in report.data["findings"]]
                print(
                    f"clean run {number + 1}: {time.monotonic() - begin:.1f} s, {len(alarms)} alarms", file=sys.stderr
                )
    return alarms


def speeds() -> str:
    """The duration of the quick check, from the command to the report."""
    told = [f"{hosts} hosts {median(_walls(hosts)):.1f} s" for hosts in (2, 16)]
    told.append(f"four hosts, one of them without power, {median(_walls(4, dead='h4')):.1f} s")
    busy = os.getloadavg()[0]
    return f"\nThe quick check takes, on {os.cpu_count()} cores with a load of {busy:.0f}: {', '.join(told)}."


def _walls(hosts: int, dead: str = "") -> list[float]:
    with Lab(hosts) as lab:
        stage = Stage(lab)
        if dead:
            lab.power_off(dead)
        return [stage.check(()).seconds for _ in range(3)]


def page(scores: Sequence[Score], clean: int, alarms: Sequence[str]) -> str:
    """The table and a summary."""
    rows = {score.fault.row for score in scores}
    found = {row for row in rows if all(score.found for score in scores if score.fault.row == row)}
    counted = len(found & set(BEFORE_LAUNCH))
    wrong = [score for score in scores if score.wrong]
    lines = [
        "| row | fault | found | host named right | printed fix, typed as printed | seconds |",
        "|---|---|---|---|---|---|",
        *(line(score) for score in scores),
        "",
        f"{counted} of {len(rows & set(BEFORE_LAUNCH))} rows that can be seen before launch were found in every form; "
        f"a host that was whole was named {len(wrong)} times.",
    ]
    if clean:
        lines.append(f"In {clean} checks of four healthy hosts there were {len(alarms)} false alarms.")
        lines += [f"- {alarm}" for alarm in dict.fromkeys(alarms)]
    return "\n".join(lines)


def line(score: Score) -> str:
    """One row of the table."""
    fault = score.fault
    level = " (--deep)" if fault.deep else ""
    if score.problem:
        return f"| {fault.row} | {fault.title}{level} | failed: {score.problem.splitlines()[-1]} | | | |"
    named = "yes" if score.right else "no"
    if score.wrong:
        named += f", and {', '.join(score.wrong)} wrongly"
    found = "yes" if score.found else "NO"
    cells = (
        str(fault.row),
        fault.title + level,
        found,
        named if score.found else "",
        score.fix,
        f"{score.seconds:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.scoreboard",
        description="Inject every fault of the catalog on lab hosts: does `muster check` find it? Needs root.",
        epilog="example: python -m benchmarks.scoreboard --rows 3,11,48 --clean 5",
    )
    p.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], help="only these rows")
    p.add_argument("--clean", type=int, default=0, metavar="N", help="also check four healthy hosts N times")
    p.add_argument("--write", action="store_true", help="put the table into docs/measurements/checks.md")
    return p.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())

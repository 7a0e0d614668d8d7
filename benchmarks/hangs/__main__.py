"""`python -m benchmarks.hangs`: inject every kind of hang with every rank as the culprit, and print the results."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.commands import BIN
from benchmarks.experiment import Failed
from benchmarks.hangs.cases import CASES, SCRIPT, Case
from benchmarks.hangs.soak import soak
from benchmarks.lab_hosts import InHost, bring_up
from benchmarks.published import put_between
from muster.lab import Lab

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "hang-detection.md"
BEGIN, END = "<!-- scoreboard: python -m benchmarks.hangs writes this -->", "<!-- end of scoreboard -->"
RANKS = range(4)
AFTER = 3
LIMIT = 5.0
"""Maximum number of seconds from the hang to its report, with --hang-after 3."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of one case with one culprit."""

    case: Case
    culprit: int
    sentence: str = ""
    named: frozenset[int] = frozenset()
    seconds: float = 0.0

    @property
    def found(self) -> bool:
        """Whether the hang was reported."""
        return bool(self.sentence)

    @property
    def right(self) -> bool:
        """Whether the culprit was named, and no other rank."""
        if self.case.name == "host":
            return "h2" in self.sentence and not self.named
        return self.named == frozenset({self.culprit})

    @property
    def wrong(self) -> bool:
        """Whether another rank was named."""
        return bool(self.named - {self.culprit}) if self.case.name != "host" else bool(self.named)

    @property
    def placed(self) -> bool:
        """Whether the line was reported, if there is one."""
        return self.case.place in self.sentence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the selected cases; the exit code is 1 if a hang was missed, misattributed or reported late."""
    options = parse(argv)
    if options.soak:
        return soak(options.soak)
    scores: list[Score] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in [case for case in CASES if not options.cases or case.name in options.cases]:
            for culprit in options.ranks if case.name != "host" else [2]:
                scores.append(play(case, culprit, Path(folder)))
                tell(scores[-1])
    text = page(scores)
    print(text)
    if options.write:
        put_between(PAGE, BEGIN, END, text)
    return int(not all(score.right and score.placed and score.seconds <= LIMIT for score in scores))


def play(case: Case, culprit: int, folder: Path) -> Score:
    """Run one job on two new hosts, with its controller on the first."""
    argv: list[str | Path] = [BIN / "muster", "run", "--no-check", "-H", "h1:2,h2:2", "--grace", "0"]
    argv += ["--hang-after", str(AFTER), "--on-hang", "kill", SCRIPT, case.name, str(culprit)]
    with bring_up(2, folder) as lab, InHost(lab, "h1", argv, folder) as job:
        return watch(case, culprit, lab, job)


def watch(case: Case, culprit: int, lab: Lab, job: InHost) -> Score:
    """Score what the job prints, and when."""
    try:
        job.wait_for_words(b"AT ", 90)
        return _score_dead_host(case, culprit, lab, job) if case.name == "host" else _score_hang(case, culprit, job)
    except Failed as error:
        print(f"{case.name}, rank {culprit}: {error}", file=sys.stderr)
        return Score(case=case, culprit=culprit)


def _score_dead_host(case: Case, culprit: int, lab: Lab, job: InHost) -> Score:
    """Power off the second host and wait until Muster reports it."""
    halt = time.time()
    lab.power_off("h2")
    said = job.wait_for_words(b"h2 has been silent", 20)
    job.wait_for_words(b"lost h2", 20)
    job.read_words(0.3)
    hangs = [line for line in job.words.decode(errors="replace").splitlines() if "hang: " in line]
    named = frozenset(int(rank) for line in hangs for rank in re.findall(r"rank (\d+) on", line))
    return Score(case=case, culprit=culprit, sentence="h2 has been silent", named=named, seconds=said - halt)


def _score_hang(case: Case, culprit: int, job: InHost) -> Score:
    """Wait until Muster names the hung rank."""
    said = job.wait_for_words(b" failed " if case.ends else b"muster: hang: ", 20)
    job.read_words(0.3)
    words = job.words.decode(errors="replace")
    halt = max(float(moment) for moment in re.findall(r"AT ([\d.]+)", words))
    wanted = re.compile(r"muster: hang: (.*)" if not case.ends else r"muster: (.* (?:failed|ended|calls) .*)")
    sentence = next((found[1] for line in words.splitlines() if (found := wanted.match(line))), "")
    # What is said of the ranks that only wait, or failed because of it, comes before or after the one that is named.
    first = re.findall(r"rank (\d+) on", sentence)
    named = frozenset(map(int, first[:1] if case.ends else first))
    return Score(case=case, culprit=culprit, sentence=sentence, named=named, seconds=said - halt)


def tell(score: Score) -> None:
    """Print one line on stderr."""
    marks = f"{'right' if score.right else 'WRONG RANK'} {'' if score.placed else 'NO LINE'}"
    name = f"{score.case.name:12} rank {score.culprit}"
    print(f"{name}: {score.seconds:4.1f} s {marks} {score.sentence}", file=sys.stderr, flush=True)


def page(scores: Sequence[Score]) -> str:
    """The table and a summary."""
    lines = [
        "| what the rank does | found | right rank | right file and line | seconds |",
        "|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(score.case for score in scores):
        mine = [score for score in scores if score.case is case]
        times = [score.seconds for score in mine if score.found]
        line = f"{sum(score.placed for score in mine)} of {len(mine)}" if case.place else f"none: {case.no_line}"
        cells = [
            case.title,
            f"{sum(score.found for score in mine)} of {len(mine)}",
            f"{sum(score.right for score in mine)} of {len(mine)}",
            line,
            f"{min(times):.1f} to {max(times):.1f}" if times else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    right = sum(score.right and (score.placed or not score.case.place) for score in scores)
    lines += [
        "",
        f"{right} of {len(scores)} right ({right / max(1, len(scores)):.0%}); another rank was named "
        f"{sum(score.wrong for score in scores)} times; the slowest took "
        f"{max((score.seconds for score in scores), default=0.0):.1f} s with `--hang-after {AFTER}`.",
    ]
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.hangs",
        description="Inject every kind of hang into a job of 4 ranks on 2 lab hosts, on every rank. Needs root.",
        epilog="example: python -m benchmarks.hangs --cases sleep,stop --ranks 2",
    )
    names = ", ".join(case.name for case in CASES)
    p.add_argument("--cases", type=lambda text: text.split(","), help=f"only these: {names}")
    p.add_argument("--ranks", type=_numbers, default=list(RANKS), help="only these ranks as culprits")
    p.add_argument("--write", action="store_true", help="put the table into docs/measurements/hang-detection.md")
    p.add_argument(
        "--soak",
        metavar="MINUTES",
        type=float,
        nargs="?",
        const=20.0,
        help="instead, train with pauses of 60 s in which one rank computes, and count false reports (default: 20)",
    )
    return p.parse_args(argv)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())

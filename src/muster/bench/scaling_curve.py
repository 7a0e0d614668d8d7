"""How the throughput of a training script scales with its ranks.

Weak scaling: every rank has as much to do as a single rank, so n ranks should do n times as much per second.
Strong scaling: the batch of one rank is divided among the ranks, so n ranks should be n times as fast.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from muster.errors import UsageError
from muster.hosts import Host
from muster.text import significant

Kind = Literal["weak", "strong"]

_MEANING: dict[Kind, tuple[str, str]] = {
    "weak": ("same batch size on every rank", "do {} times the work of one"),
    "strong": ("one rank's batch divided among all ranks", "are {} times as fast at the same work"),
}

_TOO_GOOD = 1.1
"""Efficiency above which the result is more than measurement noise."""

_THINGS = r"images?|imgs?|samples?|tokens?|sequences?|seqs?|examples?|frames?|utterances?|items?"
_NUMBER = r"[0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_PER_SECOND = r"\s*(?:/|per)\s*s(?:ec(?:ond)?)?\b"
_RATES = (
    re.compile(rf"(?P<number>{_NUMBER})\s*(?P<thing>{_THINGS}){_PER_SECOND}", re.IGNORECASE),
    re.compile(rf"\b(?P<thing>{_THINGS}){_PER_SECOND}[\"']?\s*[:=]?\s*(?P<number>{_NUMBER})", re.IGNORECASE),
)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Throughput of a job per second, all ranks together."""

    value: float
    thing: str
    """images, samples or tokens."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the script."""

    kind: Kind
    ranks: int
    hosts: int
    batch: int | None
    """Batch size per rank, if the command gives it."""
    rate: float


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """All runs of a script."""

    command: str
    thing: str
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()

    def of_kind(self, kind: Kind) -> list[Run]:
        """The runs of one kind of scaling, by number of ranks; the run with one rank belongs to both."""
        runs = [run for run in self.runs if run.kind == kind or run.ranks == 1]
        return sorted(runs, key=lambda run: run.ranks) if any(run.kind == kind for run in runs) else []

    def efficiency(self, kind: Kind) -> dict[int, float]:
        """The speedup divided by the number of ranks, by number of ranks."""
        runs = self.of_kind(kind)
        return {run.ranks: run.rate / (runs[0].rate * run.ranks) for run in runs}

    def as_data(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**asdict(self), "efficiency": self.curves()}

    def curves(self) -> dict[str, dict[int, float]]:
        """The efficiency of each kind that was measured."""
        return {kind: curve for kind in _MEANING if (curve := self.efficiency(kind))}


def read_rate(line: str) -> Rate | None:
    """The last rate in a line, such as `1234.5 images/s`, `tokens/s: 1,234` or `12 samples per second`, or None."""
    found = [match for pattern in _RATES for match in pattern.finditer(line)]
    if not found:
        return None
    match = max(found, key=lambda match: match.end())
    thing = match["thing"].lower()
    return Rate(value=float(match["number"].replace(",", "")), thing=thing if thing.endswith("s") else f"{thing}s")


def rank_counts(total: int) -> list[int]:
    """1, 2, 4, … and the total."""
    counts = [1 << power for power in range(total.bit_length()) if 1 << power < total]
    return [*counts, total]


def first_ranks(hosts: Sequence[Host], count: int) -> tuple[Host, ...]:
    """The hosts with the slots of the first `count` ranks."""
    chosen: list[Host] = []
    for host in hosts:
        slots = min(host.slots or 0, count - sum(other.slots or 0 for other in chosen))
        if slots:
            chosen.append(replace(host, slots=slots, gpus=host.gpus and host.gpus[:slots]))
    return tuple(chosen)


def batch_of(args: Sequence[str], option: str) -> int | None:
    """The batch size per rank from the script's arguments, or None if they do not give it."""
    at = _position(args, option)
    if at is None:
        return None
    text = args[at].partition("=")[2] if "=" in args[at] else args[at + 1] if at + 1 < len(args) else ""
    if not text.isdigit() or int(text) == 0:
        raise UsageError(f"{option} must be a positive integer, got `{text}`")
    return int(text)


def with_batch(args: Sequence[str], option: str, batch: int) -> list[str]:
    """The arguments of a script with a different batch size."""
    at = _position(args, option)
    assert at is not None
    if "=" in args[at]:
        return [*args[:at], f"{args[at].partition('=')[0]}={batch}", *args[at + 1 :]]
    return [*args[: at + 1], str(batch), *args[at + 2 :]]


def _position(args: Sequence[str], option: str) -> int | None:
    """The index of an option, written with dashes or, like `--batch_size`, with underscores."""
    names = [word.partition("=")[0].replace("_", "-") for word in args]
    wanted = option.replace("_", "-")
    return names.index(wanted) if wanted in names else None


def table(scaling: Scaling) -> list[str]:
    """The runs with their speedup and efficiency, weak before strong."""
    lines: list[str] = []
    titles = ("ranks", "hosts", "batch", f"{scaling.thing}/s", "speedup", "efficiency")
    for kind, (words, _) in _MEANING.items():
        runs = scaling.of_kind(kind)
        efficiency = scaling.efficiency(kind)
        rows = [titles] + [
            (
                str(run.ranks),
                str(run.hosts),
                "" if run.batch is None else str(run.batch),
                significant(run.rate),
                f"{run.rate / runs[0].rate:.2f}",
                f"{100 * efficiency[run.ranks]:.1f} %",
            )
            for run in runs
        ]
        if runs:
            first, *rest = ("".join(map(str.rjust, row, (9, 7, 8, 14, 10, 12))).rstrip() for row in rows)
            lines += [f"# {kind} scaling: {words}", "#" + first[1:], *rest]
    return lines


def sentences(scaling: Scaling) -> list[str]:
    """A summary of the results."""
    said: list[str] = []
    for kind, (_, words) in _MEANING.items():
        runs = scaling.of_kind(kind)
        if len(runs) > 1:
            last = runs[-1]
            times = words.format(f"{last.rate / runs[0].rate:.2f}")
            part = 100 * scaling.efficiency(kind)[last.ranks]
            said.append(f"{kind.capitalize()} scaling: {last.ranks} ranks {times} (efficiency {part:.0f} %).")
    if any(part > _TOO_GOOD for curve in scaling.curves().values() for part in curve.values()):
        said.append("An efficiency above 100 % means that other load slowed the run with one rank; measure again.")
    return [*said, *scaling.notes]

"""How the rate of a training script grows with its ranks.

Weak scaling: every rank has as much to do as one alone, so n ranks should do n times as much in a second.
Strong scaling: the batch of one rank is shared out, so n ranks should be n times as fast at the same work.
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
    "weak": ("each rank does as much as one alone", "do {} times the work of one"),
    "strong": ("one rank's batch is shared out", "are {} times as fast at the same work"),
}

_TOO_GOOD = 1.1
"""An efficiency above this is no scatter of the measurement."""

_THINGS = r"images?|imgs?|samples?|tokens?|sequences?|seqs?|examples?|frames?|utterances?|items?"
_NUMBER = r"[0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_PER_SECOND = r"\s*(?:/|per)\s*s(?:ec(?:ond)?)?\b"
_RATES = (
    re.compile(rf"(?P<number>{_NUMBER})\s*(?P<thing>{_THINGS}){_PER_SECOND}", re.IGNORECASE),
    re.compile(rf"\b(?P<thing>{_THINGS}){_PER_SECOND}[\"']?\s*[:=]?\s*(?P<number>{_NUMBER})", re.IGNORECASE),
)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How much a job does in a second, all ranks together."""

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
    """Of one rank, where the command says it."""
    rate: float


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """All runs of a script."""

    command: str
    thing: str
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()

    def of_kind(self, kind: Kind) -> list[Run]:
        """The runs that tell one kind of scaling, from few ranks to many; one rank alone belongs to both."""
        runs = [run for run in self.runs if run.kind == kind or run.ranks == 1]
        return sorted(runs, key=lambda run: run.ranks) if any(run.kind == kind for run in runs) else []

    def efficiency(self, kind: Kind) -> dict[int, float]:
        """By ranks: the rate over that of one rank, as a part of the ranks."""
        runs = self.of_kind(kind)
        return {run.ranks: run.rate / (runs[0].rate * run.ranks) for run in runs}

    def as_data(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**asdict(self), "efficiency": self.curves()}

    def curves(self) -> dict[str, dict[int, float]]:
        """The efficiency of each kind that was measured."""
        return {kind: curve for kind in _MEANING if (curve := self.efficiency(kind))}


def read_rate(line: str) -> Rate | None:
    """The last rate in a line: `1234.5 images/s`, `tokens/s: 1,234` or `12 samples per second`; None without one."""
    found = [match for pattern in _RATES for match in pattern.finditer(line)]
    if not found:
        return None
    match = max(found, key=lambda match: match.end())
    thing = match["thing"].lower()
    return Rate(value=float(match["number"].replace(",", "")), thing=thing if thing.endswith("s") else f"{thing}s")


def rank_counts(total: int) -> list[int]:
    """1, 2, 4 … and all of them."""
    counts = [1 << power for power in range(total.bit_length()) if 1 << power < total]
    return [*counts, total]


def first_ranks(hosts: Sequence[Host], count: int) -> tuple[Host, ...]:
    """The hosts with as many slots as the first `count` ranks need."""
    chosen: list[Host] = []
    for host in hosts:
        slots = min(host.slots or 0, count - sum(other.slots or 0 for other in chosen))
        if slots:
            chosen.append(replace(host, slots=slots, gpus=host.gpus and host.gpus[:slots]))
    return tuple(chosen)


def batch_of(args: Sequence[str], option: str) -> int | None:
    """The value of the option that says a rank's batch; None where the command does not say it."""
    at = _position(args, option)
    if at is None:
        return None
    text = args[at].partition("=")[2] if "=" in args[at] else args[at + 1] if at + 1 < len(args) else ""
    if not text.isdigit() or int(text) == 0:
        raise UsageError(f"{option} {text}: that is no batch size to share out among ranks", hint="give it as a number")
    return int(text)


def with_batch(args: Sequence[str], option: str, batch: int) -> list[str]:
    """The arguments of a script with another batch size."""
    at = _position(args, option)
    assert at is not None
    if "=" in args[at]:
        return [*args[:at], f"{args[at].partition('=')[0]}={batch}", *args[at + 1 :]]
    return [*args[: at + 1], str(batch), *args[at + 2 :]]


def _position(args: Sequence[str], option: str) -> int | None:
    """Where an option stands, be it written with dashes or, as `--batch_size`, with underscores."""
    names = [word.partition("=")[0].replace("_", "-") for word in args]
    wanted = option.replace("_", "-")
    return names.index(wanted) if wanted in names else None


def table(scaling: Scaling) -> list[str]:
    """The runs with their speed-up and efficiency, weak before strong."""
    lines: list[str] = []
    titles = ("ranks", "hosts", "batch", f"{scaling.thing}/s", "speed-up", "efficiency")
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
    """What it comes to."""
    said: list[str] = []
    for kind, (_, words) in _MEANING.items():
        runs = scaling.of_kind(kind)
        if len(runs) > 1:
            last = runs[-1]
            times = words.format(f"{last.rate / runs[0].rate:.2f}")
            part = 100 * scaling.efficiency(kind)[last.ranks]
            said.append(f"{kind.capitalize()} scaling: {last.ranks} ranks {times}, {part:.0f} % of {last.ranks}.")
    if any(part > _TOO_GOOD for curve in scaling.curves().values() for part in curve.values()):
        said.append("More than 100 % can only be if one rank alone was disturbed: measure again on quiet machines.")
    return [*said, *scaling.notes]

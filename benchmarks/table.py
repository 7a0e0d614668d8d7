"""The rows of the table, what was measured for them, and the verdict; nothing here has an effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: what is measured and what it must reach."""

    name: str
    """What `--only` calls it."""
    what: str
    peer: str = ""
    """What Muster is measured beside; empty when there is only the limit."""
    unit: Literal["s", "ms", "MB"] = "s"
    limit: float
    """The most that the ratio to the peer may be; with `absolute`, the most that Muster's own figure may be."""
    absolute: bool = False


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One round of a row."""

    muster: float
    peer: float | None = None
    also: Mapping[str, float] = field(default_factory=dict[str, float])
    """Figures that explain this one; they go into the samples, not into the table."""

    @property
    def ratio(self) -> float | None:
        """Muster's figure over its peer's in the same round."""
        return None if self.peer is None else self.muster / self.peer


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row with all its rounds, or with the reason why it has none."""

    row: Row
    samples: tuple[Sample, ...] = ()
    problem: str = ""
    """Why it was not measured."""

    @property
    def verdict(self) -> str:
        """Whether the row reaches what it must."""
        if self.problem:
            return self.problem
        return "reached" if self.value <= self.row.limit else "MISSED"

    @property
    def value(self) -> float:
        """What is held against the limit: the median of the rounds."""
        return median(self.values)

    @property
    def values(self) -> list[float]:
        """The rounds as they are judged. Each ratio is of one round, so a load that comes and goes hits both sides."""
        if self.row.absolute:
            return [sample.muster for sample in self.samples]
        return [ratio for sample in self.samples if (ratio := sample.ratio) is not None]

    def as_data(self) -> dict[str, object]:
        """Everything, for the file of samples."""
        rounds = [
            {"muster": sample.muster, "peer": sample.peer, "ratio": sample.ratio, **sample.also}
            for sample in self.samples
        ]
        return {"what": self.row.what, "peer": self.row.peer, "verdict": self.verdict, "rounds": rounds}


HEADER = ("what", "Muster", "peer", "ratio (of the rounds)", "must reach", "verdict")


def markdown(results: Sequence[Result]) -> str:
    """The results as a Markdown table that also reads well in a terminal."""
    lines = [HEADER, *(cells(result) for result in results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (lines[0], rule, *lines[1:])
    )


def cells(result: Result) -> tuple[str, ...]:
    """One line of the table, cell by cell."""
    row, samples = result.row, result.samples
    limit = f"≤ {row.limit:g} {row.unit}" if row.absolute else f"≤ {row.limit:g}"
    if not samples:
        return (row.what, "", row.peer, "", limit, result.verdict)
    peers = [sample.peer for sample in samples if sample.peer is not None]
    peer = f"{row.peer} {figure(median(peers), row.unit)}" if peers else ""
    ratios = [ratio for sample in samples if (ratio := sample.ratio) is not None]
    ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
    own = figure(median(sample.muster for sample in samples), row.unit)
    return (row.what, own, peer, ratio, limit, result.verdict)


def figure(value: float, unit: str) -> str:
    """A measured value with three digits that count."""
    digits = max(0, 2 - len(str(int(abs(value)))) + 1) if value >= 1 else 2
    return f"{value:.{digits}f} {unit}"

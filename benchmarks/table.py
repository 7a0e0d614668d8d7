"""The rows of the table, their measurements and the verdict; pure functions and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table: what is measured, and its limit."""

    name: str
    """Its name for `--only`."""
    what: str
    peer: str = ""
    """What Muster is compared with; empty if there is only a limit."""
    unit: Literal["s", "ms", "MB"] = "s"
    limit: float
    """Maximum ratio to the peer; with `absolute`, the maximum of Muster's own value."""
    absolute: bool = False


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One round of a row."""

    muster: float
    peer: float | None = None
    also: Mapping[str, float] = field(default_factory=dict[str, float])
    """Additional values that explain this one, written to the samples but not to the table."""

    @property
    def ratio(self) -> float | None:
        """Muster's value divided by its peer's in the same round."""
        return None if self.peer is None else self.muster / self.peer


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row with all its rounds, or the reason why it was not measured."""

    row: Row
    samples: tuple[Sample, ...] = ()
    problem: str = ""
    """Why it was not measured."""

    @property
    def verdict(self) -> str:
        """Whether the row is within its limit."""
        if self.problem:
            return self.problem
        return "reached" if self.value <= self.row.limit else "MISSED"

    @property
    def value(self) -> float:
        """The value that is compared with the limit: the median of the rounds."""
        return median(self.values)

    @property
    def values(self) -> list[float]:
        """The values of the rounds. Ratios are computed within a round, so that varying load affects both sides."""
        if self.row.absolute:
            return [sample.muster for sample in self.samples]
        return [ratio for sample in self.samples if (ratio := sample.ratio) is not None]

    def as_data(self) -> dict[str, object]:
        """All data, for the file of samples."""
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
    """The cells of a row."""
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
    """A measured value with three significant digits."""
    digits = max(0, 2 - len(str(int(abs(value)))) + 1) if value >= 1 else 2
    return f"{value:.{digits}f} {unit}"

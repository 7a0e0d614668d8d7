"""What was measured, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any

from muster.bench.bandwidth import bus_bandwidth


@dataclass(frozen=True, kw_only=True)
class Row:
    """One operation at one size."""

    operation: str
    size: int
    count: int
    type: str
    ranks: int
    seconds: tuple[float, ...]
    """For each block of calls the time of one call on the slowest rank."""
    wrong: int
    """Elements with another value than they should have, on all ranks together."""

    @property
    def time(self) -> float:
        """The median, in seconds."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """How far the middle half of the times lies apart, as a part of the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.time

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in bytes per second."""
        return self.size / self.time

    @property
    def busbw(self) -> float:
        """Bus bandwidth in bytes per second."""
        return bus_bandwidth(self.operation, self.size, self.time, self.ranks)

    def as_data(self) -> dict[str, Any]:
        """Everything, for JSON."""
        derived = {name: getattr(self, name) for name in ("time", "spread", "algbw", "busbw")}
        return {**asdict(self), **derived}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two ranks by themselves."""

    a: int
    b: int
    latency: float
    """Seconds for 8 bytes, one way."""
    there: float
    """Bytes per second from a to b."""
    back: float


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """A network interface or InfiniBand port that carried the data, by its own counters."""

    name: str
    speed: float | None
    """Bits per second, as the kernel reports them."""
    virtual: bool
    """No cable is behind it, so its speed is only a word."""
    mtu: int | None


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Where a rank ran."""

    number: int
    host: str
    gpu: str = ""
    pcie: float | None = None
    """Bytes per second each way of the GPU's PCIe link, without what protocols take."""
    nvlink: tuple[float, ...] = ()
    """Bytes per second each way of each of its NVLinks."""
    copies: Mapping[str, float] = field(default_factory=dict[str, float])
    """Bytes per second: memory, or to_gpu, from_gpu and in_gpu."""
    carriers: tuple[Carrier, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Sizes of an operation that were not measured."""

    operation: str
    size: int
    """The first of them."""
    why: str
    """memory or time."""
    seconds: float = 0.0
    """What one call would have taken."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole benchmark."""

    backend: str
    device: str
    torch: str
    nccl: str
    ranks: tuple[Rank, ...]
    rows: tuple[Row, ...]
    pairs: tuple[Pair, ...]
    left_out: tuple[LeftOut, ...] = ()
    room: int
    """The largest size every rank has memory for."""
    narrowest: int
    """The rank that has the least."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts, in the order of their ranks."""
        return tuple(dict.fromkeys(rank.host for rank in self.ranks))

    def as_data(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**asdict(self), "rows": [row.as_data() for row in self.rows]}

"""The measurements, as data."""

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
    """Seconds per call on the slowest rank, for each block of calls."""
    wrong: int
    """Number of elements with a wrong value, on all ranks together."""

    @property
    def time(self) -> float:
        """The median time in seconds."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """The interquartile range of the times, as a fraction of the median."""
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
    """A measurement between two ranks."""

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
    """Whether it has no physical link, so that its reported speed means nothing."""
    mtu: int | None


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank, its host and its hardware."""

    number: int
    host: str
    gpu: str = ""
    pcie: float | None = None
    """Bytes per second each way of the GPU's PCIe link, without protocol overhead."""
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
    """The smallest of them, in bytes."""
    why: str
    """"memory" or "time"."""
    seconds: float = 0.0
    """Estimated duration of one call."""


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
    """The largest size in bytes for which every rank has enough memory."""
    narrowest: int
    """The rank with the least memory."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts, in rank order."""
        return tuple(dict.fromkeys(rank.host for rank in self.ranks))

    def as_data(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**asdict(self), "rows": [row.as_data() for row in self.rows]}

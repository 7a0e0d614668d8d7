"""Bandwidths as nccl-tests defines them, so that figures can be laid side by side.

The algorithm bandwidth is the size over the time. The bus bandwidth is what each rank's link must have carried at
least, and does not depend on the number of ranks: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

BUS_FACTORS: Mapping[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "all-to-all": lambda n: (n - 1) / n,
    "send-recv": lambda n: 1.0,
}
"""By operation: the bus bandwidth over the algorithm bandwidth, for n ranks."""

OPERATIONS = tuple(BUS_FACTORS)


def bus_bandwidth(operation: str, size: int, seconds: float, ranks: int) -> float:
    """Bytes per second over the busiest link, where `size` is the whole array: the parts of all ranks together."""
    return size / seconds * BUS_FACTORS[operation](ranks)

"""Bandwidths as defined by nccl-tests, so that results are comparable.

The algorithm bandwidth is the size divided by the time. The bus bandwidth is the minimum that each rank's link must
have carried; it does not depend on the number of ranks:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
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
"""Ratio of bus bandwidth to algorithm bandwidth for n ranks, by operation."""

OPERATIONS = tuple(BUS_FACTORS)


def bus_bandwidth(operation: str, size: int, seconds: float, ranks: int) -> float:
    """Bytes per second over the busiest link; `size` is the whole array, that is the parts of all ranks together."""
    return size / seconds * BUS_FACTORS[operation](ranks)

"""Timing of calls in blocks that all ranks start together, taking the slowest rank's time of each block.

For small sizes, a block of one call would measure how simultaneously ranks leave a barrier. So a block repeats small
calls many times, as nccl-tests does, and the blocks give the median and the spread.
"""

from __future__ import annotations

import time

from .group import Call, Group

BLOCK = 0.02
"""Minimum duration of a block in seconds; ranks leave a barrier within about 0.1 ms of each other."""

BUDGET = 0.3
"""Seconds for all blocks of one size, if the calls are short enough."""

_FEWEST, _MOST = 3, 15


def time_call(group: Group, call: Call) -> list[float]:
    """Seconds per call in each of several blocks; the list is the same on every rank."""
    block(group, call, 1)  # the first call creates connections and buffers
    (once,) = group.slowest([block(group, call, 1)])
    calls = max(1, round(BLOCK / max(once, 1e-7)))
    if calls > 1:  # a single short call mostly waits for the other ranks
        (together,) = group.slowest([block(group, call, calls)])
        once = together / calls
        calls = max(1, min(100_000, round(BLOCK / max(once, 1e-7))))
    blocks = max(_FEWEST, min(_MOST, round(BUDGET / max(calls * once, 1e-7))))
    known = [once] if calls == 1 else []  # do not repeat a slow call more often than necessary
    return known + group.slowest([block(group, call, calls) / calls for _ in range(blocks - len(known))])


def block(group: Group, call: Call, calls: int) -> float:
    """Seconds for several calls in a row, started together with the other ranks."""
    group.settle()
    group.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    group.settle()
    return time.perf_counter() - start

"""How long a call takes: blocks of calls, each begun together, and for each block the slowest rank's time.

A block of one call would, for small sizes, measure how well ranks leave a barrier. So small calls are made many
in a row, as nccl-tests does, and the blocks give the median and the spread.
"""

from __future__ import annotations

import time

from .group import Call, Group

BLOCK = 0.02
"""Seconds a block takes at least; leaving a barrier differs by about 0.1 ms between ranks."""

BUDGET = 0.3
"""Seconds for the blocks of one size, if a call is that quick."""

_FEWEST, _MOST = 3, 15


def time_call(group: Group, call: Call) -> list[float]:
    """Seconds for one call in each of several blocks, the same list on every rank."""
    block(group, call, 1)  # connections and buffers are made at the first call
    (once,) = group.slowest([block(group, call, 1)])
    calls = max(1, round(BLOCK / max(once, 1e-7)))
    if calls > 1:  # a single call is mostly waiting for the others
        (together,) = group.slowest([block(group, call, calls)])
        once = together / calls
        calls = max(1, min(100_000, round(BLOCK / max(once, 1e-7))))
    blocks = max(_FEWEST, min(_MOST, round(BUDGET / max(calls * once, 1e-7))))
    known = [once] if calls == 1 else []  # a slow call is not made more often than need be
    return known + group.slowest([block(group, call, calls) / calls for _ in range(blocks - len(known))])


def block(group: Group, call: Call, calls: int) -> float:
    """Seconds for some calls in a row, begun together with the other ranks."""
    group.settle()
    group.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    group.settle()
    return time.perf_counter() - start

"""Leaves the world of a rank in order, or breaks it off after a failure."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from muster.rank.world.detect import Detection
from muster.rank.world.gloo import wait_until_at_rest
from muster.rank.world.sockets import hang_up
from muster.rank.world.waiting import wait_for

FAREWELL_LIMIT = 10.0
"""Seconds that rank 0 waits for the others at the end, because they may still need its store."""


def agent_keeps_store() -> bool:
    """Whether the launcher hosts the store, so that rank 0 need not stay for the others."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


_KEPT: list[Any] = []
"""Destroyed groups, kept alive until the process exits.

If a DDP model holds the last reference to a gloo group, its destructor waits for gloo's threads while holding the GIL,
which they need to release their tensors; this hung one function in four (torch 2.13, 2026-11-15).
"""


class Exit:
    """Leaves the world of one rank, once."""

    def __init__(self, dist: Any, found: Detection, store: Any, connections: frozenset[tuple[int, str]]) -> None:
        self._dist, self._found, self._store, self._connections = dist, found, store, connections
        self._process = os.getpid()
        self._open = True
        atexit.register(self._at_exit)

    def __call__(self, orderly: bool) -> None:
        """Leave; if not `orderly`, without waiting for the other ranks."""
        if self._ends_here():
            if orderly:
                self._destroy()
                self._say_farewell(stay=True)
            else:
                self._break_off()

    def _at_exit(self) -> None:
        """Leave a world that the script left open; abort it if an exception ended the script."""
        if self._ends_here():
            if hasattr(sys, "last_value"):  # set by Python after an uncaught exception
                self._break_off()
            else:
                self._destroy()
                self._say_farewell(stay=False)

    def _ends_here(self) -> bool:
        if not self._open or os.getpid() != self._process:  # a forked child must not leave its parent's world
            return False
        self._open = False
        atexit.unregister(self._at_exit)
        return self._dist.is_initialized()

    def _break_off(self) -> None:
        """Destroy the group although other ranks may be waiting in a collective."""
        if self._dist.get_backend() == "nccl":
            self._dist.group.WORLD.abort()
        hang_up(self._connections)
        self._destroy()

    def _destroy(self) -> None:
        if self._dist.get_backend() == "gloo":
            _KEPT.append(self._dist.group.WORLD)
            wait_until_at_rest(limit=1.0)
        self._dist.destroy_process_group()

    def _say_farewell(self, *, stay: bool) -> None:
        """Notify rank 0, which waits until all ranks have left, because they may still need its store."""
        if self._store is None or agent_keeps_store():
            return
        store, keys = self._store, [f"left/{rank}" for rank in range(self._found.size)]
        try:
            store.set(keys[self._found.rank], "")
            if self._found.rank == 0 and stay:
                wait_for(
                    lambda: store.check(keys), FAREWELL_LIMIT, lambda: "rank 0 is waiting for the other ranks to leave"
                )
        except RuntimeError:
            pass  # rank 0 has exited without waiting for this rank, and its store is gone

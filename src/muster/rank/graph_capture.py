"""Prevents reads of NCCL's flight recorder while a CUDA graph is captured.

Reading it makes torch query CUDA events of unfinished calls (`update_state` in FlightRecorderDetail.hpp). While any
thread captures in the default mode "global", such a query from another thread invalidates the capture (pytorch issue
104487, where torch's own watchdog did so).
"""

from __future__ import annotations

import time
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LONGEST_READING = 1.0
"""Seconds to wait for a read to finish; it takes 15 to 40 ms if the recorder is full."""

_LONGEST = 600.0
"""Seconds after which a capture counts as abandoned without `capture_end`."""


class Captures:
    """The active captures. A reader never waits for a capture; a capture waits for a read to finish."""

    def __init__(self) -> None:
        self.is_guarded = False
        """Whether the captures of this process are tracked."""
        self._reading = allocate_lock()
        self._open: dict[int, float] = {}
        """The start time of each capture, by the id of its graph."""

    def read(self, dump: Callable[[], bytes]) -> bytes | None:
        """Return `dump()`, or None without calling it while a capture is active."""
        if not self._reading.acquire(True, _LONGEST_READING):
            return None
        try:
            return None if self._is_any_open() else dump()
        finally:
            self._reading.release()

    def guard(self, graph: type[Any]) -> None:
        """Track the captures of this graph class."""
        from functools import wraps

        captures = self
        begin: Callable[..., Any] = graph.capture_begin
        end: Callable[..., Any] = graph.capture_end

        @wraps(begin)
        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            is_again = id(self) in captures._open
            try:
                captures._begin(self)
                return begin(self, *args, **kwargs)
            except BaseException:
                if not is_again:  # torch refuses to begin a capture twice, and the first one continues
                    captures._end(self)
                raise

        @wraps(end)
        def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return end(self, *args, **kwargs)
            finally:
                captures._end(self)

        graph.capture_begin, graph.capture_end = capture_begin, capture_end
        self.is_guarded = True

    def _begin(self, graph: object) -> None:
        """Register a capture, so that no new read starts, and wait for a running read to finish."""
        self._open[id(graph)] = time.monotonic()
        if self._reading.acquire(True, _LONGEST_READING):
            self._reading.release()

    def _end(self, graph: object) -> None:
        self._open.pop(id(graph), None)

    def _is_any_open(self) -> bool:
        longest_ago = time.monotonic() - _LONGEST
        return any(began > longest_ago for began in list(self._open.values()))

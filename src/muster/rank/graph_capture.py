"""Inside a rank: NCCL's flight recorder is not read while a CUDA graph is captured.

Reading it makes torch ask CUDA about the events of unfinished calls (`update_state` in FlightRecorderDetail.hpp). While
any thread captures in the mode "global", which is the default, such a question from another thread ends the capture
(pytorch issue 104487, where torch's own watchdog did so).
"""

from __future__ import annotations

import time
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LONGEST_READING = 1.0
"""Seconds to wait for the end of a reading, which takes 15 to 40 milliseconds where the recorder is full."""

_LONGEST = 600.0
"""Seconds after which a capture is taken for one that was given up without its `capture_end`."""


class Captures:
    """The captures that are open. A reader never waits for one; a capture waits for the end of a reading."""

    def __init__(self) -> None:
        self.is_guarded = False
        """Whether the captures of this process are seen at all."""
        self._reading = allocate_lock()
        self._open: dict[int, float] = {}
        """When each began, by the identity of its graph."""

    def read(self, dump: Callable[[], bytes]) -> bytes | None:
        """What `dump` returns; None, without calling it, while a capture is open."""
        if not self._reading.acquire(True, _LONGEST_READING):
            return None
        try:
            return None if self._is_any_open() else dump()
        finally:
            self._reading.release()

    def guard(self, graph: type[Any]) -> None:
        """Have the captures of this class of graphs seen."""
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
                if not is_again:  # torch refuses to begin one twice, and the first goes on
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
        """Note it, so that no reading begins from now on, and wait for the end of one that has begun."""
        self._open[id(graph)] = time.monotonic()
        if self._reading.acquire(True, _LONGEST_READING):
            self._reading.release()

    def _end(self, graph: object) -> None:
        self._open.pop(id(graph), None)

    def _is_any_open(self) -> bool:
        longest_ago = time.monotonic() - _LONGEST
        return any(began > longest_ago for began in list(self._open.values()))

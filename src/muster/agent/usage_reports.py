"""Reports the resource usage of the host and its ranks periodically, from a second after their start."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ..shared import light_selectors as selectors
    from .gpu_metrics import Reader
    from .guard import Guard
    from .host_metrics import Gauges
    from .rank_process import Rank

_AFTER = 1.0
"""Seconds from the start of the ranks to the first measurement, which must not delay them."""


class UsageReports:
    """Measures while ranks run."""

    def __init__(
        self, selector: selectors.Selector, send: Callable[[Mapping[str, object]], None], guard: Guard
    ) -> None:
        self._selector = selector
        self._send = send
        self._guard = guard
        self._gauges: Gauges | None = None
        self._begin: tuple[float, bool] | None = None
        """When to start measuring, and whether to include the host."""

    @property
    def gpus(self) -> Reader | None:
        """What reads the GPUs, if they are measured."""
        return self._gauges.gpus if self._gauges is not None else None

    def begin(self, *, of_host: bool) -> None:
        """Measure from now on, also the host if `of_host`."""
        self._begin = time.monotonic() + _AFTER, of_host

    def step(self, ranks: Collection[Rank]) -> None:
        """Measure and report, if due."""
        try:
            if self._gauges is not None:
                self._gauges.step(ranks)
            elif self._begin is not None and time.monotonic() >= self._begin[0] and not _have_ended(ranks):
                from .host_metrics import Gauges  # here, so that it does not delay the ranks

                self._gauges = Gauges(self._selector, self._send, self._begin[1], self._guard)
        except Exception as error:
            self._guard.failed("the resource usage of the host and its ranks", error)

    def end(self) -> None:
        """Stop measuring, because the processes of the job are about to end."""
        self._begin = None
        if self._gauges is not None:
            self._gauges.end()
            self._gauges = None


def _have_ended(ranks: Collection[Rank]) -> bool:
    """Whether the ranks of this host ended before anything was measured, while those of other hosts run."""
    return bool(ranks) and all(rank.exited for rank in ranks)

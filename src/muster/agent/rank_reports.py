"""What the ranks of this host report: kept where it is for the agent, else passed on with the number of the rank."""

from __future__ import annotations

import json
import re

from ..shared.wire import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..shared.reports import Answer, Marked, Moved, Raised, Sampling
    from .local_ranks import LocalRanks
    from .stopping import Interrupt

_PIECE = b'{"t":"piece","piece":"'
_TIME = re.compile(rb',"time":[0-9.eE+-]+}')
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


class RankReports:
    """Reads reports, validates them, and gives each to whom it is for."""

    def __init__(self, local: LocalRanks) -> None:
        self._local = local
        self._handlers: dict[str, Callable[[Any], None]] = {
            "sampling": self._on_sampling,
            "answer": self._on_answer,
            "marked": self._on_marked,
            "moved": self._on_moved,
            "exception": self._on_exception,
        }
        """The reports that the agent does not simply pass on."""

    def take(self, rank: int, line: bytes) -> None:
        """Take one line of a rank; a result of hundreds of megabytes is passed on without parsing it."""
        before, _, after = line.partition(_PIECE)
        piece, _, rest = after.partition(b'"')
        if not before and not piece.translate(None, _BASE64) and _TIME.fullmatch(rest):
            self._local.transmit(line[:-1] + b',"rank":%d}\n' % rank)
            return
        try:
            report: Any = {**json.loads(line), "rank": rank}
        except (ValueError, TypeError):
            return  # a script that closes and reuses descriptors wrote into it
        from ..shared.protocol import validate  # not before: the agent's first message must not wait for it
        from ..shared.reports import REPORTS

        try:
            validate(report, REPORTS)
        except ProtocolError as error:
            self._local.guard.failed("what a rank reports", error)
            if report.pop("calls", None) is None:  # which come from torch's insides; a failure is reported without them
                return
            self.take(rank, json.dumps(report).encode())
            return
        self._handlers.get(report["t"], self._local.send)(report)

    def _on_sampling(self, report: Sampling) -> None:
        self._local.ranks[report["rank"]].thread = report["thread"]

    def _on_answer(self, report: Answer) -> None:
        for look in self._local.looks:
            look.answer(report["rank"], report)

    def _on_marked(self, report: Marked) -> None:
        interrupt = self._interrupt(report["rank"])
        if interrupt is not None:
            interrupt.on_marked()

    def _on_moved(self, report: Moved) -> None:
        interrupt = self._interrupt(report["rank"])
        if interrupt is not None:
            interrupt.on_moved(report)

    def _interrupt(self, rank: int) -> Interrupt | None:
        return self._local.stopping.interrupt(rank) if self._local.stopping is not None else None

    def _on_exception(self, report: Raised) -> None:
        rank = self._local.ranks[report["rank"]]
        rank.paths = report.pop("paths", rank.paths)
        self._local.send(report)

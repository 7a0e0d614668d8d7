"""Handles the reports of this host's ranks: those for the agent, and those to forward with the rank's number."""

from __future__ import annotations

from ..shared.wire import ProtocolError, decode, encode
from .rank_process import report_reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..shared.reports import Answer, ImportsTorch, Marked, Moved, Raised, Sampling
    from .local_ranks import LocalRanks
    from .rank_process import Stream
    from .stopping import Interrupt

_PIECE = b'{"t":"piece","piece":"'
_TIME = b',"time":'
_NUMBER = b"0123456789.eE+-"
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


def _is_time(rest: bytes) -> bool:
    """Whether this is the end of a report, with nothing but a time."""
    number = rest[len(_TIME) : -1]
    return rest == _TIME + number + b"}" and number != b"" and not number.translate(None, _NUMBER)


class RankReports:
    """Parses, validates and dispatches reports."""

    def __init__(self, local: LocalRanks) -> None:
        self._local = local
        self._handlers: dict[str, Callable[[Any], None]] = {
            "sampling": self._on_sampling,
            "imports_torch": self._on_imports_torch,
            "answer": self._on_answer,
            "marked": self._on_marked,
            "moved": self._on_moved,
            "exception": self._on_exception,
        }
        """The handlers of reports that the agent does not simply forward."""

    def read(self, stream: Stream, data: bytes) -> None:
        """Handle what a rank has written; the script may have written to the descriptor, too."""
        try:
            lines = stream.reports.lines(data)
        except ProtocolError as error:
            self._local.guard.failed("what a rank reports", error)
            stream.reports = report_reader()
            return
        for line in lines:
            self.take(stream.rank, line)

    def take(self, rank: int, line: bytes) -> None:
        """Handle one line of a rank; pieces of a result, which may be very large, are forwarded without parsing."""
        before, _, after = line.partition(_PIECE)
        piece, _, rest = after.partition(b'"')
        if not before and not piece.translate(None, _BASE64) and _is_time(rest):
            self._local.transmit(line[:-1] + b',"rank":%d}\n' % rank)
            return
        try:
            report: Any = {**decode(line), "rank": rank}
        except (ProtocolError, TypeError):
            return  # written by a script that closed and reused the descriptor
        from ..shared.protocol import validate  # here, so that it does not delay the agent's first message
        from ..shared.reports import REPORTS

        try:
            validate(report, REPORTS, strict=True)
        except ProtocolError as error:
            self._local.guard.failed("what a rank reports", error)
            if report.pop("calls", None) is None:  # from torch's internals; report the failure without them
                return
            self.take(rank, encode(report)[:-1])
            return
        self._handlers.get(report["t"], self._local.send)(report)

    def _on_sampling(self, report: Sampling) -> None:
        self._local.ranks[report["rank"]].thread = report["thread"]

    def _on_imports_torch(self, report: ImportsTorch) -> None:
        self._local.on_torch()

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

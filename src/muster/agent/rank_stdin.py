"""The stdin of this host's ranks: that of `muster run`, inherited or sent over the channel, or nothing."""

from __future__ import annotations

import os

from ..shared import light_selectors as selectors
from ..shared.wire import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..shared.replies import StdinTaken
    from ..shared.requests import SendStdin
    from .rank_process import Rank

INHERITED = "MUSTER_STDIN"
"""The environment variable with the descriptor that is the stdin of an agent's ranks."""


def inherited() -> int:
    """The descriptor that the agent inherited for its ranks; 0, which is /dev/null, if there is none."""
    number = int(os.environ.pop(INHERITED, "0"))
    try:
        if number:
            os.set_inheritable(number, False)
    except OSError:
        return 0  # a wrapper around the interpreter has closed it
    return number


class Stdin:
    """Gives ranks their stdin: the inherited one for all ranks, or a pipe from the controller for one rank."""

    def __init__(
        self, selector: selectors.Selector, send: Callable[[Mapping[str, object]], None], from_controller: int = 0
    ) -> None:
        self.selector = selector
        self.send = send
        self._inherited = from_controller
        self._fed: Rank | None = None
        self._writer: Writer | None = None
        self._request: int | None = None
        """The request to answer when the pipe has accepted the piece; the next piece comes after that."""
        self._is_last = False

    def begin(self, ranks: dict[int, Rank], fed: int | None) -> None:
        """Choose the stdin of each rank of a new attempt; `fed` is the rank whose input the controller sends."""
        self.close()
        for rank in ranks.values():
            rank.stdin = self._inherited
        if fed in ranks and not self._inherited:
            self._fed = ranks[fed]
            self._fed.stdin, write = os.pipe()
            os.set_blocking(write, False)
            self._writer = Writer(write, lambda data: os.write(write, data))

    def given(self, rank: Rank) -> None:
        """Close our copy of the rank's end of the pipe, so that we notice when the rank closes it."""
        if rank is self._fed and self._writer is not None:
            os.close(rank.stdin)

    def take(self, message: SendStdin, request: int) -> StdinTaken | None:
        """Receive a piece for the rank; the reply is sent when there is room for another."""
        from base64 import b64decode

        if self._writer is None:
            return {"closed": True}
        self._request, self._is_last = request, message["last"]
        self._write(b64decode(message["piece"]))
        return None

    def _write(self, data: bytes = b"") -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            writer.send(data)
        except OSError:
            self.close()  # the rank has closed its stdin
            return
        watched = writer.fd in self.selector.get_map()
        if writer.pending:
            if not watched:
                self.selector.register(writer.fd, selectors.EVENT_WRITE, self._write)
            return
        if watched:
            self.selector.unregister(writer.fd)
        if self._is_last:
            self.close()
        else:
            self._reply(closed=False)

    def ended(self, rank: Rank) -> None:
        """A rank has exited and no longer reads its input."""
        if rank is self._fed:
            self.close()

    def end(self) -> None:
        """Close what ranks could read: the job is over."""
        self.close()
        if self._inherited:
            os.close(self._inherited)
            self._inherited = 0

    def close(self) -> None:
        """Close the pipe, so that the rank sees the end of its input."""
        if self._writer is not None:
            if self._writer.fd in self.selector.get_map():
                self.selector.unregister(self._writer.fd)
            os.close(self._writer.fd)
            self._writer = None
        self._reply(closed=True)

    def _reply(self, *, closed: bool) -> None:
        if self._request is not None:
            self.send({"re": self._request, "closed": closed})
            self._request = None

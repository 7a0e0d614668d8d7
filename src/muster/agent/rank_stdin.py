"""What the ranks of this host read: the stdin of `muster run`, inherited or sent over the channel, or nothing."""

from __future__ import annotations

import os
import selectors

from ..shared.wire import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..shared.replies import StdinTaken
    from ..shared.requests import SendStdin
    from .rank_process import Rank

INHERITED = "MUSTER_STDIN"
"""The variable that tells an agent the number of the descriptor that is the stdin of its ranks."""


def inherited() -> int:
    """The descriptor that came with the agent for its ranks; 0, which is /dev/null, where none did."""
    number = int(os.environ.pop(INHERITED, "0"))
    try:
        if number:
            os.set_inheritable(number, False)
    except OSError:
        return 0  # a wrapper around the interpreter has closed it
    return number


class Stdin:
    """Gives ranks their stdin: all of them the inherited one, or one of them a pipe that the controller fills."""

    def __init__(
        self, selector: selectors.BaseSelector, send: Callable[[Mapping[str, object]], None], from_controller: int = 0
    ) -> None:
        self.selector = selector
        self.send = send
        self._inherited = from_controller
        self._fed: Rank | None = None
        self._writer: Writer | None = None
        self._request: int | None = None
        """What is to be answered once the pipe has taken the piece: the next one comes after that."""
        self._is_last = False

    def begin(self, ranks: dict[int, Rank], fed: int | None) -> None:
        """Choose what each rank of a new attempt reads; `fed` is the rank whose input the controller sends."""
        self.close()
        for rank in ranks.values():
            rank.stdin = self._inherited
        if fed in ranks and not self._inherited:
            self._fed = ranks[fed]
            self._fed.stdin, write = os.pipe()
            os.set_blocking(write, False)
            self._writer = Writer(write, lambda data: os.write(write, data))

    def given(self, rank: Rank) -> None:
        """The rank has its end of the pipe, or will never start: without ours it can be seen that it closes it."""
        if rank is self._fed and self._writer is not None:
            os.close(rank.stdin)

    def take(self, message: SendStdin, request: int) -> StdinTaken | None:
        """Take a piece for the rank; the reply comes when there is room for another."""
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
        """A rank has ended: nobody reads what more may come for it."""
        if rank is self._fed:
            self.close()

    def close(self) -> None:
        """Let the rank see the end of its input."""
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

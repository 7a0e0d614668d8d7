"""Detects ranks that wait for input after an incomplete line, such as `input("name? ")` or a debugger."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .rank_process import Rank, Stream

_AFTER = 0.1
"""Seconds from the start of a line to the first check whether its rank waits for input."""

_BETWEEN = 0.5
"""Seconds between further checks, and between two turns of an idle agent."""

_READ = {"x86_64": b"0", "aarch64": b"63", "ppc64le": b"3"}
"""The number of the `read` system call, by machine; on others, any call with that descriptor counts."""


class Prompts:
    """The incomplete lines of ranks that have a stdin."""

    def __init__(self, send: Callable[[Mapping[str, object]], None]) -> None:
        self.send = send
        self._open: dict[int, tuple[int, float]] = {}
        """By rank: the stream of the line, and the time of the next check."""

    def wrote(self, stream: Stream, text: str) -> None:
        """Handle output of a rank that has a stdin."""
        if text.endswith("\n"):
            self._open.pop(stream.rank, None)
        elif text:
            self._open[stream.rank] = stream.number, time.monotonic() + _AFTER

    @property
    def patience(self) -> float:
        """Seconds until the next check, or until the agent's next turn."""
        now = time.monotonic()
        return max(0.02, min([_BETWEEN, *(due - now for _, due in self._open.values())]))

    def step(self, ranks: Mapping[int, Rank]) -> None:
        """Report each rank that waits for input after an incomplete line, once per line."""
        now = time.monotonic()
        for number, (stream, due) in list(self._open.items()):
            rank = ranks.get(number)
            if rank is None or rank.exited:
                del self._open[number]
            elif now >= due:
                if waits_for_input(rank.pid):
                    del self._open[number]
                    self.send({"t": "prompt", "rank": number, "stream": stream})
                else:
                    self._open[number] = stream, now + _BETWEEN


def waits_for_input(pid: int) -> bool:
    """Whether the main thread of a process is blocked reading its stdin; True if the kernel denies access."""
    try:
        with open(f"/proc/{pid}/syscall", "rb") as file:
            words = file.read().split()
        if len(words) < 2 or words[0] != _READ.get(os.uname().machine, words[0]):
            return False
        # torch.distributed.breakpoint() reopens /dev/stdin with another number.
        read, stdin = (os.stat(f"/proc/{pid}/fd/{fd}") for fd in (int(words[1], 16), 0))
        return os.path.samestat(read, stdin)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False  # it has exited, or this kernel has no such file

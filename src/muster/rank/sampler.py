"""A thread inside a rank that samples and reports its progress, and answers the agent's requests.

It needs the GIL for each sample. A rank that holds the GIL in C code does not answer, which is informative as well.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time

from ..shared.user_code import is_users
from . import torch_adapter
from .arrivals import Arrivals
from .failure_text import innermost
from .joining import meeting
from .questions import LOOK, MARK, MOVED, SIGNAL, STACKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import TypedDict

    from ..shared.reports import Meeting, Where
    from .reporter import Reporter

    class Stacks(TypedDict):
        """The stack traces of all threads, and what the main thread waits for."""

        stack: str
        peer: int | None
        work: bool
        meeting: Meeting | None


_FIRST = 0.02
"""Seconds between samples until the first collective, whose time is shown to the user."""

_BETWEEN = 0.1
"""Seconds between samples after that; each takes 10 us, or 150 us on a busy machine with cold caches."""

_MOVING = 0.2
"""Seconds between samples while each of them shows progress."""

_REPORT = 1.0
"""Minimum number of seconds between two reports."""

_STILL = 5.0
"""Seconds between two reports without progress."""

_STUCK = 1.0
"""Seconds without progress after which a rank that has not handled SIGINT is stuck, unless it was slower before."""

_DEEPEST = 100
_MOST_THREADS = 64
_TAIL = 8
"""Number of collectives per group that are reported if a hang is suspected."""


class Sampler:
    """Samples five to ten times a second, reports at most once a second."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.groups: dict[str, tuple[int, int]] = {}
        self.steps = [0, 0]
        """Steps of all optimizers, and of the training loop."""
        self.saves = [0]
        """Number of files that torch.save has written."""
        self.arrivals = Arrivals(reporter)
        self.moved = time.time()
        """The time of the last progress: a collective was called or finished, or an optimizer stepped."""
        self._seen: tuple[dict[str, tuple[int, int]], int] = ({}, 0)
        self._longest = 0.0
        """The longest time without progress so far, in seconds."""
        self._marked: tuple[FrameType | None, int] | None = None
        """Where the main thread was before SIGINT."""
        self._looks = self._waiting = 0
        self._reported_at = 0.0
        self._reported_move = 0.0
        self._main = threading.main_thread().ident

    def start(self) -> None:
        """Start the sampling thread."""
        torch_adapter.hold_back_while_capturing()
        torch_adapter.count_steps(self.steps, self.arrivals.made)
        torch_adapter.count_saves(self.saves)
        # Guarded, because the traceback of a thread would appear in the script's stderr.
        run = (self._run,)
        threading.Thread(target=self.reporter.guard, args=run, name="muster-progress", daemon=True).start()

    def _run(self) -> None:
        self.reporter.send({"t": "sampling", "thread": threading.get_native_id()})
        why = torch_adapter.why_unwatched()
        if why:
            self.reporter.unwatched(why)
        self.report()
        poll = select.poll()
        poll.register(self.reporter.fd, select.POLLIN)
        wait = _FIRST
        while not sys.is_finalizing() and self.reporter.is_whole:
            asked = poll.poll(wait * 1000)
            moves = self._look()
            wait = _FIRST if not self.reporter.reported else _MOVING if moves else _BETWEEN
            if asked and not self._answer():
                return
            now = time.monotonic()
            is_news = self.moved > self._reported_move or self._waiting
            first = self.reporter.reported == 0 and any(finished for _, finished in self.groups.values())
            if first or now - self._reported_at >= (_REPORT if is_news else _STILL):
                self.report()
            self.arrivals.step(self.moved)

    def _look(self) -> bool:
        """Read the progress of the groups; True if there was any since the last sample."""
        self.groups = torch_adapter.group_numbers()
        seen = (self.groups, self.steps[0])
        moves = seen != self._seen
        if moves:
            now = time.time()
            if self._seen[0]:  # before its first group, a rank loads code and data
                self._longest = max(self._longest, now - self.moved)
            self._seen = seen
            self.moved = now
        self._looks += 1
        self._waiting += any(begun > finished for begun, finished in self.groups.values())
        return moves

    def report(self) -> None:
        """Report the progress of the rank, and the share of time it has waited since the last report."""
        share = round(self._waiting / self._looks, 3) if self._looks else None
        self._looks = self._waiting = 0
        self._reported_at, self._reported_move = time.monotonic(), self.moved
        done = sum(finished for _, finished in self.groups.values())
        self.reporter.progress(done, waiting=share, saves=self.saves[0], **self._where())

    def _where(self) -> Where:
        frames = _frames(sys._current_frames().get(self._main or 0))
        joining = not self.groups and any(frame.f_code.co_name == "init_process_group" for frame in frames)
        return {
            "steps": self.steps[1],
            "groups": self.groups,
            "moved": self.moved,
            "place": innermost(frames),
            "joining": joining,
        }

    def _answer(self) -> bool:
        """Answer the agent's requests; False if the agent is gone."""
        try:
            asked = os.read(self.reporter.fd, 64)
        except OSError:
            return False
        if not asked:
            return False
        if MARK in asked:
            self._marked = self._main_at()
            self.reporter.send({"t": "marked"})
        if MOVED in asked:
            moved = self._marked != self._main_at()
            # A step may be one long call, so a stuck rank must take longer than any step before.
            stuck = not moved and time.time() - self.moved > max(_STUCK, 2 * self._longest)
            self.reporter.send({"t": "moved", "moved": moved, "stuck": stuck})
        if LOOK in asked or STACKS in asked:
            self._send_location(deep=STACKS in asked)
        return True

    def _main_at(self) -> tuple[FrameType | None, int]:
        frame = sys._current_frames().get(self._main or 0)
        return frame, frame.f_lasti if frame is not None else 0

    def _send_location(self, *, deep: bool) -> None:
        answer = {"t": "answer", "deep": deep, **self._where(), "taken": _is_taken()}
        if deep:
            answer |= {**self._stacks(), "recorder": torch_adapter.recorder_tail(_TAIL, is_users)}
        self.reporter.send(answer)

    def _stacks(self) -> Stacks:
        """The stack traces of all other threads in faulthandler's format, main thread last, and what it waits for."""
        names = {ident: thread.name for ident, thread in list(vars(threading)["_active"].items())}
        frames = {ident: _frames(frame) for ident, frame in sys._current_frames().items()}
        frames.pop(threading.get_ident(), None)
        main = frames.pop(self._main or 0, [])
        lines: list[str] = []
        for ident, stack in [*list(frames.items())[:_MOST_THREADS], (self._main or 0, main)]:
            lines.append(f"Thread 0x{ident:016x} {names.get(ident, '')} (most recent call first):")
            lines += [
                f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}'
                for frame in stack[:_DEEPEST]
            ]
            lines.append("")
        peers = [torch_adapter.peer_of(frame) for frame in main[:4]]
        peer = next((peer for peer in peers if peer is not None), None)
        work = bool(main) and _waits_for_work(main[0])
        return {"stack": "\n".join(lines), "peer": peer, "work": work, "meeting": meeting(main)}


def _frames(frame: FrameType | None) -> list[FrameType]:
    """The frames from this one on, innermost first, without those of this package."""
    found: list[FrameType] = []
    ours = __name__.rpartition(".")[0] + "."
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module in (ours + "rank", ours + "call"):
            break  # the frames that called the script
        if not module.startswith(ours):
            found.append(frame)
        frame = frame.f_back
    return found


def _waits_for_work(frame: FrameType) -> bool:
    """Whether the innermost frame calls `work.wait()` of an asynchronous operation, judged by its source line.

    It is C++ code without a frame of its own; other waits have a frame of the standard library inside.
    """
    from linecache import getline

    return is_users(frame.f_code.co_filename) and ".wait(" in getline(frame.f_code.co_filename, frame.f_lineno)


def _is_taken() -> bool:
    """Whether the script has its own handler for our signal."""
    return signal.getsignal(SIGNAL) not in (signal.SIG_DFL, None)

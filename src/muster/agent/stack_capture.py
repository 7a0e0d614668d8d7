"""Determines where the ranks of this host are, by asking them, or from outside if they do not answer.

A thread inside the rank answers with stack traces and the last collectives. If it does not (C code holds the GIL, or
there is no such thread yet), a signal makes faulthandler write stack traces to an in-memory file. The signal is sent to
that thread, which waits for the GIL anyway, so no system call of the user's code is interrupted.
"""

from __future__ import annotations

import os
import time

from ..rank.questions import LOOK, SIGNAL, STACKS
from ..shared import processes
from ..shared.machine import read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..shared.replies import ChildView, ProcessView, RankView
    from ..shared.reports import Answer
    from .rank_process import Rank

_ANSWER_LIMIT = 0.5
"""Timeout in seconds for a rank's answer; it needs the GIL, which other threads release every 5 ms."""

_DUMP_LIMIT = 0.5
"""Timeout in seconds for the stack traces that the signal requests."""

_LIMIT = 2.0
"""Seconds after which no further children of a rank are signaled."""

_SETTLED = 0.05
"""Seconds without further output after which stack traces are complete."""

_MOST_CHILDREN = 32
"""Maximum number of child processes per rank that are included."""

_NOT_SIGNALLED = ("T", "t", "D", "Z", "X")
"""Process states in which the signal would have no effect now."""

_TICKS = os.sysconf("SC_CLK_TCK")

_IO = ("rchar", "wchar", "read_bytes", "write_bytes")
"""The counters of /proc/PID/io that are summed."""


class Look:
    """One look at all ranks of this host, for a request of the controller."""

    def __init__(self, request: int, ranks: Iterable[Rank], deep: bool) -> None:
        self.request = request
        children = processes.children()
        self.views = {rank.number: View(rank, processes.below(rank.pid, children), deep) for rank in ranks}

    def answer(self, rank: int, message: Answer) -> None:
        """Handle the answer of a rank."""
        if rank in self.views:
            self.views[rank].on_answer(message)

    def step(self) -> bool:
        """Continue with all ranks; True if all is known."""
        over = [view.step() for view in self.views.values()]
        return all(over)

    def reply(self) -> dict[str, object]:
        """The reply with what is known so far."""
        for view in self.views.values():
            view.forgive()
        return {"re": self.request, "ranks": {str(number): view.facts for number, view in self.views.items()}}


class View:
    """Collects information about one rank, step by step."""

    def __init__(self, rank: Rank, below: Sequence[int], deep: bool) -> None:
        self.rank = rank
        self.deep = deep
        self.asked_at = time.monotonic()
        self.children: list[ChildView] = [{"pid": pid, **outside(pid)} for pid in below[:_MOST_CHILDREN]]
        self.facts: RankView = {**outside(rank.pid), "answered": None, "children": self.children}
        self._wait = False
        if rank.thread:
            is_stopped = self.facts["state"] in ("T", "t")
            self._wait = not is_stopped and rank.ask(STACKS if deep else LOOK)
            if self._wait or is_stopped:  # if the request could not be sent, it does not mean that it holds the GIL
                self.facts["answered"] = False
        self._targets: list[tuple[int, ProcessView]] | None = None
        """Processes whose stack traces are still missing, with the dict for the result."""
        self._dump: Dump | None = None

    def on_answer(self, message: Answer) -> None:
        """Handle the answer of the rank."""
        if not self._wait or (self.deep and not message["deep"]):
            return
        self._wait = False
        self.rank.taken = message["taken"]
        self.facts["answered"] = True
        self.facts["self_report"] = {
            "groups": message["groups"],
            "steps": message["steps"],
            "moved": message["moved"],
            "place": message["place"],
            "joining": message["joining"],
            "peer": message.get("peer"),
            "work": message.get("work"),
            "meeting": message.get("meeting"),
        }
        self.facts["stack"] = message.get("stack", "")
        self.facts["recorder"] = message.get("recorder")

    def forgive(self) -> None:
        """Reset `answered` if the rank has not answered before its timeout."""
        if self._wait:
            self.facts["answered"] = None

    def step(self) -> bool:
        """Continue; True if nothing more is to be done."""
        if self._wait and time.monotonic() - self.asked_at < _ANSWER_LIMIT:
            return False
        self._wait = False
        if not self.deep:
            return True
        if self._targets is None:
            self._targets = [] if self.facts["answered"] else [(self.rank.pid, self.facts)]
            self._targets += [(child["pid"], child) for child in self.children]
        while True:
            if self._dump is not None:
                if not self._dump.is_over:
                    return False
                self._dump.facts["stack"] = self._dump.text
                self._dump = None
            if not self._targets or time.monotonic() - self.asked_at > _LIMIT:
                return True
            pid, facts = self._targets.pop(0)
            if not self.rank.taken and facts["state"] not in _NOT_SIGNALLED and _would_write(pid, self.rank.stacks):
                self._dump = Dump(self.rank, pid, facts)


class Dump:
    """The stack traces that a process writes because of our signal."""

    def __init__(self, rank: Rank, pid: int, facts: ProcessView) -> None:
        self.facts = facts
        self.file = rank.stacks
        os.ftruncate(self.file, 0)
        self.begin = self.changed = time.monotonic()
        self.size = 0
        thread = rank.thread if pid == rank.pid else 0
        if not (thread and _signal_thread(pid, thread)):
            processes.kill([pid], SIGNAL)

    @property
    def is_over(self) -> bool:
        """Whether it is complete or timed out."""
        now = time.monotonic()
        size = os.fstat(self.file).st_size
        if size != self.size:
            self.size, self.changed = size, now
        return (size > 0 and now - self.changed >= _SETTLED) or now - self.begin > _DUMP_LIMIT

    @property
    def text(self) -> str:
        """The stack traces written so far."""
        return os.pread(self.file, 1 << 18, 0).decode("utf-8", "replace")


def _signal_thread(pid: int, thread: int) -> bool:
    tgkill = getattr(processes.libc(), "tgkill", None)  # glibc has it since 2.30
    return tgkill is not None and tgkill(pid, thread, int(SIGNAL)) == 0


def _would_write(pid: int, file: int) -> bool:
    """Whether the process has our handler and our file; a process that has called exec would die of the signal."""
    try:
        caught = int(_status(pid).get("SigCgt", "0"), 16)
        own = os.fstat(file)
        for name in os.listdir(f"/proc/{pid}/fd"):
            there = os.stat(f"/proc/{pid}/fd/{name}")
            if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino):
                return bool(caught & 1 << (SIGNAL - 1))
    except (OSError, ValueError):
        pass
    return False


def outside(pid: int) -> ProcessView:
    """What the kernel reports about a process: its state, wait channel, CPU seconds, bytes read and written.

    Also the number of context switches of its main thread, which hardly changes while it waits in a single call.
    """
    name, fields = processes.stat(pid)
    status = _status(pid)
    counters = [line.partition(": ") for line in read_text(f"/proc/{pid}/io").splitlines()]
    return {
        "state": fields[0].decode() if fields else "",
        "wchan": read_text(f"/proc/{pid}/wchan").strip("0\n"),
        "cpu_seconds": sum(map(int, fields[11:13])) / _TICKS,
        "io": sum(int(number) for kind, _, number in counters if kind in _IO),
        "switches": sum(int(status.get(f"{kind}voluntary_ctxt_switches", 0)) for kind in ("", "non")),
        "command": name.decode(errors="replace"),
        "stack": "",
    }


def _status(pid: int) -> dict[str, str]:
    lines = (line.partition(":") for line in read_text(f"/proc/{pid}/status").splitlines())
    return {name: value.strip() for name, _, value in lines}

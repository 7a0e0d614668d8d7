"""Where the ranks of this host are: asked from inside, and seen from outside where no answer comes.

A rank's own thread answers with its stacks and its last collectives. Where it does not (C code holds the interpreter's
lock, or there is no such thread yet) a signal has faulthandler write the stacks into a file in memory. The signal goes
to that thread, which waits for the lock anyway, so no system call of the user's code is interrupted.
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
"""Seconds a rank has for its answer: it needs its interpreter's lock, which other threads give up every 5 ms."""

_DUMP_LIMIT = 0.5
"""Seconds to wait for what the signal makes a process write."""

_LIMIT = 2.0
"""Seconds after which no further child of a rank is asked."""

_SETTLED = 0.05
"""Seconds without a further byte after which it is whole."""

_MOST_CHILDREN = 32
"""Child processes that are looked at, per rank."""

_NOT_SIGNALLED = ("T", "t", "D", "Z", "X")
"""States in which a process would not write anything now."""

_TICKS = os.sysconf("SC_CLK_TCK")

_IO = ("rchar", "wchar", "read_bytes", "write_bytes")
"""The counters of /proc/PID/io that are added up."""


class Look:
    """One look at all ranks of this host, for one request of the controller."""

    def __init__(self, request: int, ranks: Iterable[Rank], deep: bool) -> None:
        self.request = request
        children = processes.children()
        self.views = {rank.number: View(rank, processes.below(rank.pid, children), deep) for rank in ranks}

    def answer(self, rank: int, message: Answer) -> None:
        """Take what a rank answered."""
        if rank in self.views:
            self.views[rank].on_answer(message)

    def step(self) -> bool:
        """Go on with what is due; True when all is known."""
        over = [view.step() for view in self.views.values()]
        return all(over)

    def reply(self) -> dict[str, object]:
        """What is known by now."""
        for view in self.views.values():
            view.forgive()
        return {"re": self.request, "ranks": {str(number): view.facts for number, view in self.views.items()}}


class View:
    """What is found out about one rank, step by step."""

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
            if self._wait or is_stopped:  # one that cannot be asked does not hold its lock for that
                self.facts["answered"] = False
        self._targets: list[tuple[int, ProcessView]] | None = None
        """Processes whose stacks are still wanted, with where to put them."""
        self._dump: Dump | None = None

    def on_answer(self, message: Answer) -> None:
        """The rank has told where it is."""
        if not self._wait or (self.deep and not message["deep"]):
            return
        self._wait = False
        self.rank.taken = message["taken"]
        self.facts["answered"] = True
        self.facts["told"] = {
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
        """Not to have answered yet says nothing of a rank whose time was not over."""
        if self._wait:
            self.facts["answered"] = None

    def step(self) -> bool:
        """Do what is due now; True when nothing more is to be done."""
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
    """The stacks a process writes because of our signal."""

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
        """Whether all of it is there, or it is too late."""
        now = time.monotonic()
        size = os.fstat(self.file).st_size
        if size != self.size:
            self.size, self.changed = size, now
        return (size > 0 and now - self.changed >= _SETTLED) or now - self.begin > _DUMP_LIMIT

    @property
    def text(self) -> str:
        """What was written."""
        return os.pread(self.file, 1 << 18, 0).decode("utf-8", "replace")


def _signal_thread(pid: int, thread: int) -> bool:
    tgkill = getattr(processes.libc, "tgkill", None)  # glibc has it since 2.30
    return tgkill is not None and tgkill(pid, thread, int(SIGNAL)) == 0


def _would_write(pid: int, file: int) -> bool:
    """Whether the process has our handler and still writes into our file: one that was exec'd would die instead."""
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
    """What the kernel tells of a process: its state, where it sleeps, CPU seconds, bytes read and written.

    And how often its main thread was switched: one that waits in one and the same call is hardly ever.
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

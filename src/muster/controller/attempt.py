"""One attempt at running all ranks: takes what the agents tell, shows it, and knows when it is over."""

from __future__ import annotations

import asyncio
import base64
import re
import signal
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from muster.controller.diagnosis.rank_end import HostLoss, RankEnd, facts_of
from muster.controller.diagnosis.verdict import Verdict, hung, judge
from muster.controller.links.link import AgentLink
from muster.output.lines import LineSplitter
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.plan import Plan
from muster.shared.user_code import is_musters

_LAST_LINES = 300
"""Lines of a rank's stderr kept for the verdict: what a crash is about stands above the stacks of all threads."""

_DYING_LIMIT = 3.0
"""Seconds from a rank's uncaught exception to its end: atexit handlers, threads, destructors."""

_CAUSE_LIMIT = 3.0
"""Seconds to wait for the rank that has gone to say why, when others have only lost their connection to it."""

_FRAME = re.compile(r'File "(.*?)"')

# What MPICH and its kin write before they end everything.
_MPI_ABORT = re.compile(r"Abort\((\d+)\) on node \d+ \(rank \d+ in comm \d+\): (.*)")


@dataclass
class _RankState:
    """What is known of one rank while it runs."""

    splitters: dict[int, LineSplitter] = field(default_factory=lambda: {1: LineSplitter(), 2: LineSplitter()})
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    failure: dict[str, Any] = field(default_factory=dict[str, Any])
    left: dict[str, Any] = field(default_factory=dict[str, Any])
    done: int = 0
    groups: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Per process group the number of the last collective called and of the last finished."""
    first_collective: float | None = None
    end: RankEnd | None = None
    pieces: list[bytes] = field(default_factory=list[bytes])
    """What has come of a pickle that is not whole yet."""
    returned: bytes | None = None
    raised: bytes | None = None


class Attempt:
    """The ranks of one attempt, fed with events of their agents."""

    def __init__(
        self,
        plan: Plan,
        number: int,
        folder: Path,
        screen: Screen,
        logs: LogFiles,
        only: Collection[int] | None,
    ) -> None:
        self.plan = plan
        self.number = number
        self.folder = folder / f"attempt-{number}"
        self.screen = screen
        self.logs = logs
        self.only = only
        self.start = time.time()
        self.over = asyncio.Event()
        """Set when all ranks have ended, or one failed, or a host is lost."""
        self.losses: list[HostLoss] = []
        self.hang: Verdict | None = None
        """Set when the job was ended because it hung."""
        self.differing = ""
        """Which ranks called what, if one failed because another called something else."""
        self.stuck = False
        """Some process of it could not be ended, so nothing may be started on top of it."""
        self._width = len(str(plan.world_size - 1))
        self._ranks = {rank: _RankState() for rank in range(plan.world_size)}

    def on_event(self, link: AgentLink, event: dict[str, Any]) -> None:
        """Take one event of a host."""
        kind = event["t"]
        if kind == "out":
            self._on_output(link, event)
        elif kind in ("exception", "sysexit"):
            state = self._ranks[event["rank"]]
            state.failure = event
            state.done = event.get("done", state.done)
            state.groups = event.get("groups", state.groups)
            if kind == "exception":
                asyncio.get_running_loop().call_later(_DYING_LIMIT, self._if_still_dying, state)
        elif kind == "progress":
            state = self._ranks[event["rank"]]
            # Never less than before: the exception, which counts those that were called, may overtake a sample.
            state.done = max(state.done, event["done"])
            state.groups = event.get("groups", state.groups)
            if event["first"]:
                state.first_collective = link.our_time(event["time"])
        elif kind == "left":
            self._ranks[event["rank"]].left = event
        elif kind in ("piece", "returned", "raised"):
            self._on_pickle(event)
        elif kind == "prompt":
            self._on_prompt(link, event["rank"], event["stream"])
        elif kind == "exit":
            self._on_exit(link, event)

    def _on_pickle(self, event: dict[str, Any]) -> None:
        """Part of what a function returned or raised; it stays a pickle here."""
        state = self._ranks[event["rank"]]
        if event["t"] == "piece":
            state.pieces.append(base64.b64decode(event["piece"]))
            return
        whole = b"".join(state.pieces)
        state.pieces.clear()
        if event["t"] == "returned":
            state.returned = whole
        else:
            state.raised = whole

    def _if_still_dying(self, state: _RankState) -> None:
        """A rank that failed may wait for the others in its last moments, as MPI_Finalize does: then they wait too."""
        if state.end is None:
            self.over.set()

    def on_hang(self, sentence: str, culprits: Collection[int]) -> None:
        """Nothing moves any more, and the user wants such a job ended."""
        self.hang = hung(sentence, culprits, progress=min(state.done for state in self._ranks.values()))
        self.over.set()

    def on_loss(self, host: str, why: str, *, is_up: bool = False) -> None:
        """A host is gone, and its ranks with it; or it is up, and a process that its ranks need has ended there."""
        self.losses.append(HostLoss(host=host, why=why, time=time.time(), is_up=is_up))
        self.over.set()

    def _on_output(self, link: AgentLink, event: dict[str, Any]) -> None:
        rank, stream, text = event["rank"], event["stream"], event["text"]
        self.logs.write(self.folder / f"rank-{rank}.log", text, f"{rank} {stream}")
        self._show(link.name, rank, stream, self._ranks[rank].splitters[stream].feed(text))

    def _on_prompt(self, link: AgentLink, rank: int, stream: int) -> None:
        """A rank waits for input: what it has written is shown although its line has no end."""
        for line in self._ranks[rank].splitters[stream].finish():
            if self.only is None or rank in self.only:
                self.screen.rank_prompt(link.name, rank, self._width, stream, line.text)

    def _show(self, host: str, rank: int, stream: int, lines: list[Any]) -> None:
        for line in lines:
            if stream == 2 and line.text.strip():
                self._ranks[rank].last_words.append(line.text)
            if self.only is None or rank in self.only:
                self.screen.rank_line(host, rank, self._width, stream, line)

    def _on_exit(self, link: AgentLink, event: dict[str, Any]) -> None:
        rank = event["rank"]
        state = self._ranks[rank]
        for stream, splitter in state.splitters.items():
            self._show(link.name, rank, stream, splitter.finish())
        failure = state.failure
        # An exception is older than the exit it leads to: its own time tells better who was first.
        raised = failure.get("t") == "exception"
        when = failure["time"] if raised else event["time"]
        # One that we had to end although its exception had come would have ended with 1.
        status = 1 if raised and event["stopped_at"] is not None and event["status"] < 0 else event["status"]
        state.end = RankEnd(
            rank=rank,
            host=link.name,
            status=status,
            time=link.our_time(when),
            stopped=event["stopped_at"] is not None and when >= event["stopped_at"],
            summary=failure.get("summary", failure.get("text", "")),
            message=failure.get("message", ""),
            traceback=failure.get("traceback", ""),
            place=failure.get("place", "") or state.left.get("place", ""),
            done=state.done,
            begun=_begun(state.left.get("groups", state.groups)),
            left=state.left.get("how", ""),
            rss=event.get("rss", 0),
            has_stdin=event.get("stdin", False),
            last_words="\n".join(line for line in state.last_words if not _is_below_script(line)),
            **facts_of(event.get("facts", {})),
        )
        if not self.running or (state.end.failed and self._is_known(state.end)):
            self.over.set()
        elif state.end.failed:
            asyncio.get_running_loop().call_later(_CAUSE_LIMIT, self.over.set)

    def _is_known(self, end: RankEnd) -> bool:
        """Whether it need not be waited for another rank's word on what this one failed of."""
        return not end.is_symptom or bool(self.ended_well)

    @property
    def running(self) -> list[int]:
        """The ranks that have not ended."""
        return [rank for rank, state in self._ranks.items() if state.end is None]

    @property
    def failed_in_collective(self) -> bool:
        """Whether a rank failed as ranks do when another has gone, does not come, or calls something else."""
        ends = [state.end for state in self._ranks.values() if state.end is not None and state.end.failed]
        return any(end.is_symptom or end.status == -signal.SIGABRT for end in ends)

    @property
    def ended_well(self) -> list[int]:
        """The ranks that have ended with code 0."""
        return [rank for rank, state in self._ranks.items() if state.end is not None and state.end.status == 0]

    @property
    def returned(self) -> dict[int, bytes]:
        """What the function returned, pickled, by rank."""
        return {rank: state.returned for rank, state in self._ranks.items() if state.returned is not None}

    def raised(self, rank: int) -> bytes | None:
        """The exception of a rank, pickled, where that was possible."""
        return self._ranks[rank].raised

    def hint(self, rank: int) -> str | None:
        """What the user may do about the failure of a rank, where it is not its function's."""
        return self._ranks[rank].failure.get("hint")

    @property
    def first_collective(self) -> float | None:
        """When the last rank had its first collective behind it; None if some rank has none."""
        times = [state.first_collective for state in self._ranks.values()]
        known = [moment for moment in times if moment is not None]
        return max(known) if len(known) == len(times) else None

    def verdict(self) -> Verdict:
        """What to tell of this attempt."""
        if self.hang is not None:
            return replace(self.hang, can_restart=not self.stuck)
        aborted = self._aborted()
        ends = [state.end for rank, state in self._ranks.items() if state.end is not None and rank not in aborted]
        verdict = judge([*ends, *aborted.values()], [] if aborted else self.losses, start=self.start)
        if self.differing and not verdict.ok:
            verdict = verdict.after(self.differing)
        return replace(verdict, can_restart=verdict.can_restart and not self.stuck)

    def _aborted(self) -> dict[int, RankEnd]:
        """The ranks that ended the whole job through MPI: hydra ends every agent then, as if all hosts were lost."""
        found: dict[int, RankEnd] = {}
        for rank, state in self._ranks.items() if self.losses else ():
            said = [sign for sign in map(_MPI_ABORT.match, state.last_words) if sign]
            if said and (state.end is None or state.end.stopped):
                host, when = self.plan.placement_of(rank).name, self.losses[0].time
                code = int(said[-1][1]) & 0xFF or 1
                found[rank] = RankEnd(rank=rank, host=host, status=code, time=when, summary=said[-1][2])
        return found


def _begun(groups: dict[str, list[int]]) -> int | None:
    """How many collectives a rank had called; numbers of several groups say nothing about each other."""
    return next(iter(groups.values()))[0] if len(groups) == 1 else None


def _is_below_script(line: str) -> bool:
    """Whether a line of the stack that faulthandler prints at a crash is of what called the user's script."""
    frame = _FRAME.search(line)
    return line.startswith("Extension modules: ") or bool(frame and (frame[1] == "<string>" or is_musters(frame[1])))

"""One attempt at running all ranks: handles the events of their agents, shows output, and knows when it is over."""

from __future__ import annotations

import asyncio
import base64
import re
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from muster.controller.attempt_rank import RankState
from muster.controller.diagnosis.rank_end import HostLoss, RankEnd, with_facts
from muster.controller.diagnosis.verdict import Verdict, hung, judge, signal_name
from muster.controller.events import EventStream
from muster.controller.links.link import AgentLink
from muster.controller.traceback_folding import is_below_script, reason_to_fold
from muster.output.lines import Line, LineSplitter, without_rank_tag
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.plan import Plan
from muster.shared.events import Broken, Exit, Out, Prompt
from muster.shared.reports import FunctionRaised, FunctionReturned, Left, Piece, Progress, Raised, SysExit
from muster.shared.spawner_messages import Storeless
from muster.shared.wire import ProtocolError
from muster.text import tilde

_DYING_LIMIT = 3.0
"""Seconds a rank may take to end after an uncaught exception: atexit handlers, threads, destructors."""

_CAUSE_LIMIT = 3.0
"""Seconds to wait for the cause from the rank that left, when other ranks have only lost their connection."""

_SAME_LIMIT = 0.5
"""Seconds to wait for other ranks to fail the same way, when one fails before its first collective."""

_SIGNALS = 128
"""More than the highest number of a signal."""

_LONGEST_WORDS = 10_000
"""Characters of a stderr line that are kept for the verdict."""

# What MPICH and its derivatives print before they end all ranks.
_MPI_ABORT = re.compile(r"Abort\((\d+)\) on node \d+ \(rank \d+ in comm \d+\): (.*)")


class Attempt:
    """The ranks of one attempt, driven by the events of their agents."""

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
        """Which ranks called which collective, if one failed because another called a different one."""
        self.drain: Callable[[], None] | None = None
        """Set while a host is drained: called when all ranks have ended, and neither that nor a failure ends this."""
        self.drained: Verdict | None = None
        """Set when the job ends because nothing replaces a host that goes away."""
        self.stuck = False
        """Some process could not be killed, so the job must not be restarted."""
        self.is_expected: Callable[[RankEnd], bool] = lambda end: False
        """Whether a rank may end like this, so that the others still have time."""
        self.planned = ""
        """Why Muster ended it although nothing had failed; empty if it did not."""
        self._width = len(str(plan.world_size - 1))
        self._ranks = {rank: RankState() for rank in range(plan.world_size)}
        self._tracebacks: dict[int, int] = {}
        """Hashes of the tracebacks on the screen, and the rank that printed each first."""

    def subscribe(self, events: EventStream, *, returns: bool = False) -> None:
        """Subscribe to the events of the ranks; if they run a function that `returns`, also to its pickled results."""
        events.subscribe(Out, self._on_output)
        events.subscribe(Prompt, self._on_prompt)
        events.subscribe(Progress, self._on_progress)
        events.subscribe(Raised, self._on_exception)
        events.subscribe(SysExit, self._on_sysexit)
        events.subscribe(Left, self._on_left)
        if returns:
            events.subscribe(Piece, self._on_piece)
            events.subscribe(FunctionReturned, self._on_returned)
            events.subscribe(FunctionRaised, self._on_raised)
        events.subscribe(Exit, self._on_exit)
        events.subscribe(Broken, self._on_broken)
        events.subscribe(Storeless, self._on_storeless)

    def _state(self, rank: int) -> RankState:
        try:
            return self._ranks[rank]
        except KeyError:
            raise ProtocolError(f"rank {rank} is not a rank of this job") from None

    def _on_progress(self, link: AgentLink, event: Progress) -> None:
        state = self._state(event["rank"])
        state.has_joined = True
        # Never decreases: the exception, which counts collectives called, may overtake a sample.
        state.done = max(state.done, event["done"])
        state.groups = event.get("groups", state.groups)
        state.steps = max(state.steps, event.get("steps", 0))
        state.saves = max(state.saves, event.get("saves", 0))
        if event["first"]:
            state.first_collective = link.our_time(event["time"])

    def _on_exception(self, link: AgentLink, event: Raised) -> None:
        state = self._state(event["rank"])
        state.raised, state.exited = event, None
        state.done = event["done"]
        state.groups = event.get("groups", state.groups)
        if self._is_shown(event["rank"]):
            self._expect_traceback(link.name, event)
        asyncio.get_running_loop().call_later(_DYING_LIMIT, self._if_still_dying, state)

    def _expect_traceback(self, host: str, event: Raised) -> None:
        """Fold the traceback that the rank is about to print, if it adds nothing to what the screen shows."""
        rank, traceback = event["rank"], event.get("traceback", "")
        end = RankEnd(
            rank=rank,
            host=host,
            status=1,
            time=event["time"],
            summary=event["summary"],
            message=event["message"],
            traceback=traceback,
        )
        reason = reason_to_fold(end, self._tracebacks)
        if reason:
            self._ranks[rank].folder.expect(traceback, f"{reason}; traceback folded, see {tilde(self._log_of(rank))}")

    def _log_of(self, rank: int) -> Path:
        return self.folder / f"rank-{rank:d}.log"  # nothing but a number, whatever a host sent

    def _is_shown(self, rank: int) -> bool:
        return self.only is None or rank in self.only

    def _on_sysexit(self, link: AgentLink, event: SysExit) -> None:
        state = self._state(event["rank"])
        state.raised, state.exited = None, event

    def _on_left(self, link: AgentLink, event: Left) -> None:
        self._state(event["rank"]).left = event

    def _on_piece(self, link: AgentLink, event: Piece) -> None:
        """Part of the pickled result or exception of a function; it is not unpickled here."""
        try:
            self._state(event["rank"]).pieces.append(base64.b64decode(event["piece"]))
        except ValueError:
            raise ProtocolError("message `piece`: the field `piece` is not base64") from None

    def _on_returned(self, link: AgentLink, event: FunctionReturned) -> None:
        state = self._state(event["rank"])
        state.result = state.take_pieces()

    def _on_raised(self, link: AgentLink, event: FunctionRaised) -> None:
        state = self._state(event["rank"])
        state.exception = state.take_pieces()

    def _on_broken(self, link: AgentLink, event: Broken) -> None:
        self.on_loss(link.name, "the process that starts its ranks was killed", is_up=True)

    def _on_storeless(self, link: AgentLink, event: Storeless) -> None:
        code = event["status"]
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        self.on_loss(link.name, f"the process that hosts the store (TCPStore) {how}", is_up=True)

    def _if_still_dying(self, state: RankState) -> None:
        """End the attempt if a failed rank does not end: it may wait for the others, as MPI_Finalize does."""
        if state.end is None and self.drain is None:
            self.over.set()

    def on_hang(self, sentence: str, culprits: Collection[int]) -> None:
        """The job hangs, and the user wants hung jobs ended."""
        self.hang = hung(sentence, culprits, progress=min(state.done for state in self._ranks.values()))
        self.over.set()

    def on_loss(self, host: str, why: str, *, is_up: bool = False, ends_all: bool = False) -> None:
        """A host is lost with its ranks, or it is up (`is_up`) and a process that its ranks need has ended."""
        if any(place.name == host for place in self.plan.placements):
            pod = next((place.host.pod for place in self.plan.placements if place.name == host), "")
            loss = HostLoss(host=host, why=why, time=time.time(), is_up=is_up, ends_all=ends_all, pod=pod)
            self.losses.append(loss)
            self.over.set()

    def end_as_planned(self, why: str) -> None:
        """End this attempt although nothing failed, so that the next one runs on other hosts."""
        if not self.over.is_set():
            self.planned = why
            self.over.set()

    def _on_output(self, link: AgentLink, event: Out) -> None:
        rank, stream, text = event["rank"], event["stream"], event["text"]
        splitter = self._splitter(rank, stream)
        lines = splitter.feed(text)
        self.logs.write(self._log_of(rank), text, f"{rank:d} {stream:d}")
        if splitter.bar:
            lines.append(Line(splitter.bar, "\r"))
        # Of the states of a progress bar, only the last matters.
        self._show(link.name, rank, stream, [line for line in lines[:-1] if line.end != "\r"] + lines[-1:])

    def _splitter(self, rank: int, stream: int) -> LineSplitter:
        splitter = self._state(rank).splitters.get(stream)
        if splitter is None:
            raise ProtocolError(f"{stream} is neither stdout (1) nor stderr (2)")
        return splitter

    def _on_prompt(self, link: AgentLink, event: Prompt) -> None:
        """A rank waits for input: show its output although the line is incomplete."""
        rank, stream = event["rank"], event["stream"]
        for line in self._splitter(rank, stream).finish():
            if self._is_shown(rank):
                self.screen.rank_prompt(link.name, rank, self._width, stream, line.text)

    def _show(self, host: str, rank: int, stream: int, lines: Sequence[Line]) -> None:
        state = self._ranks[rank]
        tag = f"[rank{rank}]"
        lines = [
            Line(without_rank_tag(line.text, rank), line.end) if line.text.startswith(tag) else line for line in lines
        ]
        if stream == 2:
            last = [line.text[:_LONGEST_WORDS] for line in lines if line.end != "\r"]
            state.last_words.extend(text for text in last if text.strip())
        if not self._is_shown(rank):
            return
        for line in state.folder.pass_on(lines) if stream == 2 else lines:
            if isinstance(line, str):
                self.screen.notice(line)
            else:
                self.screen.rank_line(host, rank, self._width, stream, line)

    def _on_exit(self, link: AgentLink, event: Exit) -> None:
        rank = event["rank"]
        if not -_SIGNALS < event["status"] < 256:  # this process could not exit with it, either
            raise ProtocolError(f"message `exit`: {event['status']} is neither an exit code nor minus a signal")
        state = self._state(rank)
        for stream, splitter in state.splitters.items():
            self._show(link.name, rank, stream, splitter.finish())
        for line in state.folder.give_up():
            self.screen.rank_line(link.name, rank, self._width, 2, line)
        self.screen.rank_ended(link.name, rank, self._width)
        raised, exited, left = state.raised, state.exited, state.left
        groups = left["groups"] if left else state.groups
        # An exception precedes the exit it leads to: its time shows better which rank was first.
        when = event["time"] if raised is None else raised["time"]
        # A rank that Muster had to end after its exception would have ended with exit code 1.
        is_ended = raised is not None and event["stopped_at"] is not None and event["status"] < 0
        end = RankEnd(
            rank=rank,
            host=link.name,
            status=1 if is_ended else event["status"],
            time=link.our_time(when),
            stopped=event["stopped_at"] is not None and when >= event["stopped_at"],
            summary=raised["summary"] if raised else exited["text"] if exited else "",
            message=raised["message"] if raised else "",
            traceback=raised.get("traceback", "") if raised else "",
            place=state.place,
            done=state.done,
            # Only with one group: the numbers of several groups are not comparable.
            begun=next(iter(groups.values()))[0] if len(groups) == 1 else None,
            left=left["how"] if left else "",
            rss=event["rss"],
            has_stdin=event["stdin"],
            last_words="\n".join(line for line in state.last_words if not is_below_script(line)),
        )
        end = state.end = with_facts(end, event.get("facts"))
        # If this rank only lost its connection, another rank may still have to report the cause.
        is_known = not end.is_symptom or bool(self.ended_well)
        if not self.running:
            (self.drain or self.over.set)()
        elif end.failed and self.drain is None and not self.is_expected(end):
            # A missing module or file, or a wrong option, hits all ranks alike before they meet.
            limit = _CAUSE_LIMIT if not is_known else _SAME_LIMIT if end.status > 0 and state.done == 0 else 0
            asyncio.get_running_loop().call_later(limit, self.over.set)

    @property
    def ends(self) -> list[RankEnd]:
        """How the ranks ended that have ended."""
        return [state.end for state in self._ranks.values() if state.end is not None]

    @property
    def running(self) -> list[int]:
        """The ranks that have not ended."""
        return [rank for rank, state in self._ranks.items() if state.end is None]

    @property
    def failed_in_collective(self) -> bool:
        """Whether a rank failed as ranks do when another left, did not arrive, or called another collective."""
        return any(end.failed and (end.is_symptom or end.status == -signal.SIGABRT) for end in self.ends)

    @property
    def ended_well(self) -> list[int]:
        """The ranks that ended with exit code 0."""
        return [end.rank for end in self.ends if end.status == 0]

    @property
    def progress(self) -> int:
        """How far it came: optimizer steps of the rank with the most, or collectives in a script without optimizer."""
        states = self._ranks.values()
        return max((state.steps for state in states), default=0) or max((state.done for state in states), default=0)

    @property
    def has_saved(self) -> bool:
        """Whether a rank has written a checkpoint."""
        return any(state.saves for state in self._ranks.values())

    @property
    def trained_alone(self) -> int:
        """Number of ranks that made optimizer steps; 0 if any rank has created a process group."""
        states = self._ranks.values()
        alone = sum(state.left is not None and state.left.get("alone", 0) > 0 for state in states)
        return 0 if any(state.has_joined for state in states) else alone

    @property
    def returned(self) -> dict[int, bytes]:
        """The pickled return values of the function, by rank."""
        return {rank: state.result for rank, state in self._ranks.items() if state.result is not None}

    def raised(self, rank: int) -> bytes | None:
        """The pickled exception of a rank; None if it could not be pickled."""
        return self._ranks[rank].exception

    def hint(self, rank: int) -> str | None:
        """The hint for the failure of a rank, if the failure is not in its function."""
        raised = self._ranks[rank].raised
        return raised.get("hint") if raised is not None else None

    @property
    def first_collective(self) -> float | None:
        """When the last rank finished its first collective; None if some rank has not."""
        times = [state.first_collective for state in self._ranks.values()]
        known = [moment for moment in times if moment is not None]
        return max(known) if len(known) == len(times) else None

    def verdict(self) -> Verdict:
        """The result of this attempt."""
        if self.drained is not None:
            return self.drained
        if self.hang is not None:
            return replace(self.hang, can_restart=not self.stuck)
        aborted = self._aborted()
        ends = [end for end in self.ends if end.rank not in aborted]
        is_done = len(ends) == self.plan.world_size and all(end.status == 0 and not end.stopped for end in ends)
        losses = (
            [] if aborted or is_done else self.losses
        )  # nobody needs a host whose ranks are done, as all others are
        verdict = judge([*ends, *aborted.values()], losses, start=self.start)
        if self.differing and not verdict.ok:
            verdict = verdict.after(self.differing)
        return replace(verdict, can_restart=verdict.can_restart and not self.stuck)

    def _aborted(self) -> dict[int, RankEnd]:
        """The ranks that aborted the whole job through MPI; hydra then ends every agent, as if all hosts were lost."""
        found: dict[int, RankEnd] = {}
        for rank, state in self._ranks.items() if self.losses else ():
            said = [sign for sign in map(_MPI_ABORT.match, state.last_words) if sign]
            if said and (state.end is None or state.end.stopped):
                host, when = self.plan.placement_of(rank).name, self.losses[0].time
                code = int(said[-1][1]) & 0xFF or 1
                found[rank] = RankEnd(rank=rank, host=host, status=code, time=when, summary=said[-1][2])
        return found

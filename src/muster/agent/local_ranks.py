"""All ranks of this host: starts them one after the other, forwards their output, and stops them together."""

from __future__ import annotations

import os
import time

from ..shared import light_selectors as selectors
from ..shared import light_signal as signal
from ..shared import processes
from ..shared.light_collections import deque
from .deadline import VARIABLE, Deadline
from .failure_evidence import FailureEvidence
from .job_environment import job_environment
from .prompts import Prompts
from .rank_process import Rank, Stream
from .rank_reports import RankReports
from .rank_starter import RankStarter
from .rank_stdin import Stdin
from .signal_relay import PASS_ON_AFTER, SignalRelay
from .spawner import NO_PROCESS
from .stopping import Stopping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..shared.events import Exit
    from ..shared.replies import MemoryUse, Prepared, Problem
    from ..shared.requests import Memory, Prepare, SendCall, Start, TakeStacks
    from ..shared.spawner_messages import Ended, Started, Storeless, StoreStarted, Stray, Target
    from .guard import Guard
    from .spawner_client import Spawner
    from .stack_capture import Look

_WHERE = "where a rank is"
"""What a look determines, for error reports."""

_DRAIN = 64
"""Maximum number of reads of 64 KB after a rank has exited; a process that it left behind may write forever."""


class LocalRanks:
    """The ranks of this host and the process that starts them."""

    def __init__(
        self,
        selector: selectors.Selector,
        send: Callable[[Mapping[str, object]], None],
        transmit: Callable[[bytes], None],
        nofile: int,
        guard: Guard,
        stdin: int = 0,
    ) -> None:
        self.selector = selector
        self.send = send
        self.transmit = transmit
        self.nofile = nofile
        """The soft limit on open files for the ranks; the agent's own is higher."""
        self.guard = guard
        self.stdin = Stdin(selector, send, stdin)
        self.prompts = Prompts(send)
        self.ranks: dict[int, Rank] = {}
        self.starter = RankStarter(selector, send, self._on_spawner)
        self.stopping: Stopping | None = None
        self._to_start: deque[Rank] = deque()
        self._paused = False
        self._stop_requests: list[int] = []
        self.on_started: Callable[[int], None] = lambda pid: None
        """Called with the process of each rank that was started."""
        self.on_torch: Callable[[], None] = lambda: None
        """Called when a fresh rank begins to import torch."""
        self._evidence = FailureEvidence(guard)
        self.folders: list[str] = []
        """Where ranks write by default: their working directory and the temporary directory."""
        self.signals = SignalRelay(send, self._running)
        self.deadline = Deadline(lambda: [rank for rank in self.ranks.values() if not rank.exited])
        self._call: list[int] = []
        """The descriptor of the function that the ranks run, if any."""
        self.looks: list[Look] = []
        """Running looks at the ranks."""
        self._reports = RankReports(self)
        self._on_news: dict[str, Callable[[Any], None]] = {
            "ready": self.starter.on_ready,
            "stale": self.starter.on_stale,
            "import_failed": self.starter.on_import_failed,
            "started": self._on_started,
            "ended": self._on_ended,
            "store_started": self._on_store_started,
            "storeless": self._on_storeless,
            "stray": self._on_stray,
        }
        """The handler of each message from the spawner."""

    # --- requests -------------------------------------------------------------------------------------------

    def prepare(self, message: Prepare, request: int) -> Prepared | None:
        """Start the process that will start the ranks; with a zygote, the reply is sent after its imports."""
        cwd = os.path.expanduser(message["cwd"])
        env = job_environment(message["env"], cwd)
        env[VARIABLE] = self.deadline.path
        self.folders = [cwd, env.get("TMPDIR") or "/tmp"]
        target: Target = {
            "preload": message["preload"],
            "cwd": cwd,
            "kind": message["kind"],
            "target": message["target"],
            "args": message["args"],
            "path": message["path"],
            "nofile": self.nofile,
        }
        self._evidence.begin()
        for descriptor in self._call:
            os.close(descriptor)
        self._call = []
        return self.starter.prepare(target, env, request, keep=message["keep"])

    @property
    def spawner(self) -> Spawner | None:
        """The process that starts the ranks, if there is one."""
        return self.starter.spawner

    def memory(self, message: Memory, request: int) -> MemoryUse:
        """Measure the agent and the process that starts its ranks."""
        mine = [os.getpid(), *([self.spawner.pid] if self.spawner is not None else [])]
        return {"bytes": sum(map(processes.proportional_size, mine))}

    @property
    def is_used(self) -> bool:
        """Whether ranks run, or are being prepared, started, stopped or looked at."""
        return bool(self._running() or self._to_start or self.stopping or self.starter.is_busy or self.looks)

    def succeed(self, before: LocalRanks) -> None:
        """Take over the zygote of the last job, if it can serve another one, and close the rest of that job."""
        before.close_ranks()
        before.stdin.end()
        before.deadline.close()
        for descriptor in before._call:
            os.close(descriptor)
        self._evidence = before._evidence
        self.starter.succeed(before.starter)

    def close_ranks(self) -> None:
        """Close what is left of ranks that have ended."""
        for rank in self.ranks.values():
            for stream in rank.streams:
                self._forget(stream)
            rank.close()
        self.ranks = {}

    def take_call(self, message: SendCall, request: int) -> Problem:
        """Receive a base64 piece of the function that the ranks will run; it is kept in memory, once for all ranks."""
        from base64 import b64decode

        self._call = self._call or [os.memfd_create("muster call")]
        view = memoryview(b64decode(message["piece"]))
        try:
            while view:
                view = view[os.write(self._call[0], view) :]
        except OSError as error:
            return {"problem": error.strerror or str(error)}
        return {"problem": ""}

    def start(self, message: Start) -> Problem:
        """Start this host's ranks of a new attempt."""
        if self.spawner is None:
            return {"problem": "the process that starts ranks died"}
        for look in self.looks:
            self.send(look.reply())  # it must not continue with descriptors that will be closed or reused
        self.looks = []
        self.close_ranks()
        self.deadline.clear()
        self._evidence.begin()
        try:
            for request in message["ranks"]:
                self.ranks[request["rank"]] = Rank(request["rank"], request["env"])
        except OSError as error:
            for rank in self.ranks.values():
                rank.close()
            self.ranks = {}
            return {"problem": f"{error.strerror} (ulimit -n)" if error.strerror else str(error)}
        for rank in self.ranks.values():
            for stream in rank.streams:
                self._watch(stream)
        self.stdin.begin(self.ranks, message["fed"])
        self._to_start = deque(self.ranks.values())
        self._start_next()
        return {"problem": ""}

    def stop(self, request: int | None, grace: float, *, interrupt: bool = False) -> None:
        """Stop all ranks and their children, with SIGINT first if `interrupt`; replies when they are gone."""
        if request is not None:
            self._stop_requests.append(request)
        if self.stopping is not None:
            self.stopping.hurry(grace)
            return
        for rank in self._to_start:
            rank.exited = True  # it was never started
            rank.close()
            self.stdin.given(rank)
        self._to_start.clear()
        spared = self.spawner.pids if self.spawner else set[int]()
        patience = PASS_ON_AFTER if self.signals.is_direct else 0.0
        self.stopping = Stopping(self.ranks.values(), spared, grace, interrupt=interrupt, patience=patience)

    def pass_on(self, number: int) -> bool:
        """Ensure that the ranks get a scheduler's signal once; False if there are no ranks yet."""
        self.signals.pass_on(number)
        # If it has already ended the ranks, the controller learns of that and ends the job.
        return bool(self.ranks)

    @property
    def is_busy(self) -> bool:
        """Whether something is due within milliseconds."""
        return self.stopping is not None or self.signals.is_busy or bool(self.looks)

    def look(self, message: TakeStacks, request: int) -> None:
        """Determine where every rank is, with stack traces if `deep`; the reply is sent when all is known."""
        from .stack_capture import Look  # here, because most jobs never need it

        try:
            self.looks.append(Look(request, self._running(), message["deep"]))
        except Exception as error:
            self.guard.failed(_WHERE, error)
            self.send({"re": request, "ranks": {}})

    def _is_over(self, look: Look) -> bool:
        try:
            return look.step()
        except Exception as error:
            self.guard.failed(_WHERE, error)
            return True

    def _running(self) -> list[Rank]:
        return [rank for rank in self.ranks.values() if rank.pid and not rank.exited]

    def pause(self, paused: bool) -> None:
        """Pause or resume reading the ranks' output, depending on whether the channel keeps up."""
        if paused == self._paused:
            return
        self._paused = paused
        for rank in self.ranks.values():
            for stream in rank.streams:
                if paused:
                    self._unwatch(stream)
                else:
                    self._watch(stream)

    def step(self) -> None:
        """Continue forwarding signals, looks, and stopping the ranks; reply when they are gone."""
        self.signals.step()
        self.deadline.step()
        self.prompts.step(self.ranks)
        self._evidence.step()
        for look in list(self.looks):
            if self._is_over(look):
                self.looks.remove(look)
                self.send(look.reply())
        if self.stopping is not None and self.stopping.step():
            left = self.stopping.left()
            self.stopping = None
            for rank in self._running():
                if rank.pid not in left:  # it is dead, but its spawner is stopped and does not report it
                    self._on_exit(rank, -signal.SIGKILL, time.time(), 0)
            for request in self._stop_requests:
                self.send({"re": request, "left": left})
            self._stop_requests = []

    # --- events on this host --------------------------------------------------------------------------------

    def _start_next(self) -> None:
        if self._to_start and self.spawner is not None:
            rank = self._to_start.popleft()
            self.spawner.start_rank(rank, self._call)
            self.stdin.given(rank)

    def _on_spawner(self) -> None:
        spawner = self.spawner
        if spawner is None:
            return
        messages = spawner.receive(self.ranks, self.guard)
        if messages is None:
            self._on_spawner_gone()
            return
        for message in messages:
            self._on_news[message["t"]](message)

    def _on_started(self, message: Started) -> None:
        self.ranks[message["rank"]].pid = message["pid"]
        self.guard.note(f"started rank {message['rank']}, process {message['pid']}")
        self.on_started(message["pid"])
        self._start_next()

    def _on_ended(self, message: Ended) -> None:
        rank = self.ranks[message["rank"]]
        is_late = rank.exited or not (rank.pid or message["status"] == NO_PROCESS)  # its spawner was stopped
        if not is_late:
            self._on_exit(rank, message["status"], message["time"], message["rss"])

    def _on_store_started(self, message: StoreStarted) -> None:
        if self.spawner is not None:
            self.spawner.on_store_started(message["pid"])
            if self.stopping is not None:  # a rank imported torch after its SIGTERM
                self.stopping.spared = self.spawner.pids

    def _on_storeless(self, message: Storeless) -> None:
        if self.spawner is not None and self.spawner.has_lost_store(message) and self.stopping is None:
            self.send(message)

    def _on_stray(self, message: Stray) -> None:
        self.signals.on_stray(message["number"])

    def _on_spawner_gone(self) -> None:
        """The spawner died, and its ranks with it; their children are now the agent's."""
        self.starter.on_gone(lambda: self._evidence.facts(self.folders))
        self._to_start.clear()
        for rank in self.ranks.values():
            if not rank.exited:
                self._on_exit(rank, -signal.SIGKILL, time.time(), 0)
        self.send({"t": "broken"})

    def _on_exit(self, rank: Rank, status: int, when: float, rss: int) -> None:
        """A rank has exited: send its last output, then its exit status."""
        rank.exited = True
        self.stdin.ended(rank)
        for stream in rank.streams:
            # Read until the pipe is empty, not until it closes: a child that the rank left behind may keep it open.
            for _ in range(_DRAIN):
                if not self._on_stream(stream):
                    break
        end: Exit = {
            "t": "exit",
            "rank": rank.number,
            "status": status,
            "time": when,
            "rss": rss,
            "stopped_at": rank.stopped_at,
            "stdin": rank.has_stdin,
        }
        # A rank that hung because its GPU failed is ended by Muster.
        if status != 0 and (rank.stopped_at is None or status > 0 or self._evidence.kernel_lines()):
            facts = self._evidence.facts([*rank.paths, *self.folders])
            if facts is not None:
                end["facts"] = facts
        self.send(end)

    def _on_stream(self, stream: Stream) -> bool:
        """Forward output or reports of a rank; False if there is nothing more to read now."""
        if stream.read < 0:
            return False
        try:
            data = os.read(stream.read, 1 << 16)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""  # the rank exited without reading all requests
        if stream.number == 3:
            self._reports.read(stream, data)
        else:
            text = stream.decoder.decode(data, final=not data)
            if stream.number == 2:
                self._read_reports(stream.rank)
            if text:
                self.send({"t": "out", "rank": stream.rank, "stream": stream.number, "text": text})
                if self.ranks[stream.rank].has_stdin:
                    self.prompts.wrote(stream, text)
        if not data:
            self._forget(stream)
        return bool(data)

    def _read_reports(self, rank: int) -> None:
        """Read what a rank has reported: its exception must reach the controller before the traceback it prints."""
        for _ in range(_DRAIN):
            if not self._on_stream(self.ranks[rank].streams[2]):
                break

    def _watch(self, stream: Stream) -> None:
        if stream.read >= 0 and not self._paused and stream.read not in self.selector.get_map():
            self.selector.register(stream.read, selectors.EVENT_READ, lambda: self._on_stream(stream))

    def _unwatch(self, stream: Stream) -> None:
        if stream.read >= 0 and stream.read in self.selector.get_map():
            self.selector.unregister(stream.read)

    def _forget(self, stream: Stream) -> None:
        self._unwatch(stream)
        stream.close_read()

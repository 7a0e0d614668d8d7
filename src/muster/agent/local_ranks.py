"""All ranks of this host: starting them one after the other, passing on what they say, ending them together."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from collections import deque

from ..rank.preloaded import binds_threads
from ..shared import machine, processes
from .prompts import Prompts
from .rank_process import Rank, Stream
from .rank_stdin import Stdin
from .spawner_client import Spawner
from .stopping import Stopping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .guard import Guard
    from .stack_capture import Look

_PASS_ON_AFTER = 0.2
"""Seconds to wait for the sign that a scheduler's signal has reached the ranks by itself."""

_BETWEEN_KILLS = 10.0
"""Seconds between two looks at how many processes the kernel has killed for memory."""

_PIECE = b'{"t":"piece","piece":"'
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="

_WHERE = "where a rank is"
"""What a look finds out."""

_DRAIN = 64
"""Reads of 64 KB after a rank's end at most: something it left behind may write for ever."""


class LocalRanks:
    """The ranks and the process that starts them."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        send: Callable[[dict[str, Any]], None],
        transmit: Callable[[bytes], None],
        nofile: int,
        guard: Guard,
        stdin: int = 0,
    ) -> None:
        self.selector = selector
        self.send = send
        self.transmit = transmit
        self.nofile = nofile
        """The soft limit on descriptors that ranks get; the agent's own is higher."""
        self.guard = guard
        self.stdin = Stdin(selector, send, stdin)
        self.prompts = Prompts(send)
        self.ranks: dict[int, Rank] = {}
        self.spawner: Spawner | None = None
        self.stopping: Stopping | None = None
        self._to_start: deque[Rank] = deque()
        self._paused = False
        self._prepare_request: int | None = None
        self._stop_requests: list[int] = []
        self._kills: list[tuple[int | None, int | None]] = [(None, None)] * 2
        """What the kernel has killed for memory: some seconds ago, and when it was last looked at."""
        self._kills_due = 0.0
        self._folders: list[str] = []
        """Where ranks write unless told otherwise: their working directory and the temporary one."""
        self._to_pass_on: dict[int, float] = {}
        """Signals of a scheduler, and when each is sent on to the ranks."""
        self._call: list[int] = []
        """The descriptor of the function the ranks run, if they run one."""
        self._strays: dict[int, float] = {}
        """When the spawner last got each of them."""
        self._passed_on: dict[int, float] = {}
        """When each was last sent on."""
        self._signalled: dict[int, float] = {}
        """When the controller last had each of them sent."""
        self._looks: list[Look] = []
        """Looks at the ranks that are under way."""

    # --- what the controller asks for -----------------------------------------------------------------------

    def prepare(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Start the process that will start the ranks; with a zygote the reply comes after its imports."""
        message["cwd"] = os.path.expanduser(message["cwd"])
        # As torchrun: a failed NCCL operation ends its process.
        env = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **os.environ, **message["env"], "PWD": message["cwd"]}
        folder = os.path.dirname(sys.executable)
        if folder not in env.get("PATH", "").split(os.pathsep):
            # As in an activated environment: what the script starts (python, ninja) is this interpreter's.
            env["PATH"] = os.pathsep.join(filter(None, [folder, env.get("PATH")]))
        self._folders = [message["cwd"], env.get("TMPDIR") or "/tmp"]
        config = {name: message[name] for name in ("preload", "cwd", "kind", "target", "args", "path")}
        config["nofile"] = self.nofile
        self.spawner = Spawner()
        binding = binds_threads(env)
        if message["preload"] and not binding:
            self._prepare_request = message["id"]
            self.spawner.start_zygote(config, env)
        else:
            self.spawner.start_plain(config, env)
        self.selector.register(self.spawner.socket, selectors.EVENT_READ, self._on_spawner)
        if self._prepare_request is not None:
            return None
        return {"unsafe": f"{binding} binds threads to CPUs" if message["preload"] else ""}

    def take_call(self, piece: str) -> dict[str, Any]:
        """Take a base64 piece of the function that the ranks will run; it is kept in memory, once for all of them."""
        from base64 import b64decode

        self._call = self._call or [os.memfd_create("muster call")]
        view = memoryview(b64decode(piece))
        try:
            while view:
                view = view[os.write(self._call[0], view) :]
        except OSError as error:
            return {"problem": error.strerror or str(error)}
        return {}

    def start(self, message: dict[str, Any]) -> dict[str, Any]:
        """Start this host's ranks of a new attempt."""
        if self.spawner is None:
            return {"problem": "the process that starts ranks has died"}
        for look in self._looks:
            self.send(look.reply())  # it would go on with descriptors that are closed now, or somebody else's
        self._looks = []
        for rank in self.ranks.values():
            for stream in rank.streams:
                self._forget(stream)
            rank.close()
        self.ranks = {}
        self._kills = [machine.memory_kills()] * 2
        self._kills_due = time.monotonic() + _BETWEEN_KILLS
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
        self.stdin.begin(self.ranks, message.get("fed"))
        self._to_start = deque(self.ranks.values())
        self._start_next()
        return {}

    def stop(self, request: int | None, grace: float, *, interrupt: bool = False) -> None:
        """End all ranks and what they started, with SIGINT first if `interrupt`; answered when they are gone."""
        if request is not None:
            self._stop_requests.append(request)
        if self.stopping is not None:
            self.stopping.hurry(grace)
            return
        for rank in self._to_start:
            rank.exited = True  # it never began
            rank.close()
            self.stdin.given(rank)
        self._to_start.clear()
        spared = {self.spawner.pid, self.spawner.store} if self.spawner else set[int]()
        self.stopping = Stopping(self.ranks.values(), spared, grace, interrupt=interrupt)

    def signal(self, number: int) -> None:
        """Send a signal to the ranks that run, for the controller, unless a scheduler's has just reached them.

        PBS signals the whole first host, the controller and the agent there among it.
        """
        waits = self._to_pass_on.pop(number, None) is not None
        if (waits and self._has_reached(number)) or self._lately(self._passed_on, number):
            return
        self._signalled[number] = time.monotonic()
        processes.kill([rank.pid for rank in self._running()], number)

    def pass_on(self, number: int) -> bool:
        """A scheduler has signalled us: see that the ranks get it once; False before there were any.

        Some signal every process of a job (Slurm with proctrack/linuxproc), some only those they started
        (proctrack/cgroup): if the spawner gets it too, the ranks have got it.
        """
        if self._running() and not self._lately(self._signalled, number):
            self._to_pass_on.setdefault(number, time.monotonic() + _PASS_ON_AFTER)
        # Where it has ended the ranks already, the controller is told of that and says goodbye.
        return bool(self.ranks)

    def _has_reached(self, number: int) -> bool:
        return self._lately(self._strays, number)

    def _lately(self, times: dict[int, float], number: int) -> bool:
        return number in times and time.monotonic() - times[number] < _PASS_ON_AFTER * 5

    @property
    def is_busy(self) -> bool:
        """Whether something is due within milliseconds."""
        return self.stopping is not None or bool(self._to_pass_on) or bool(self._looks)

    def look(self, request: int, deep: bool) -> None:
        """Find out where every rank is, with its stacks if `deep`; the reply comes when all is known."""
        from .stack_capture import Look  # most jobs never hang

        try:
            self._looks.append(Look(request, self._running(), deep))
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

    def _step_signals(self) -> None:
        now = time.monotonic()
        for number, due in list(self._to_pass_on.items()):
            reached = self._has_reached(number)
            if now < due and not reached:
                continue
            del self._to_pass_on[number]
            self._passed_on[number] = now
            running = self._running()
            if number == signal.SIGTERM:
                running = [rank for rank in running if rank.stopped_at is None]
                for rank in running:
                    rank.warned = True
            processes.kill([] if reached else [rank.pid for rank in running], number)
            self.send({"t": "signal", "number": number, "ranks": [rank.number for rank in running]})

    def pause(self, paused: bool) -> None:
        """Stop or go on reading what ranks write: the channel is behind, or has caught up."""
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
        """Go on with passing signals on and with ending the ranks, and answer when they are gone."""
        self._step_signals()
        self.prompts.step(self.ranks)
        if self.ranks and time.monotonic() > self._kills_due:
            # An old reading is kept: a killed process of many gigabytes takes seconds to go.
            self._kills = [self._kills[1], machine.memory_kills()]
            self._kills_due = time.monotonic() + _BETWEEN_KILLS
        for look in list(self._looks):
            if self._is_over(look):
                self._looks.remove(look)
                self.send(look.reply())
        if self.stopping is not None and self.stopping.step():
            left = self.stopping.left()
            self.stopping = None
            for request in self._stop_requests:
                self.send({"re": request, "left": left})
            self._stop_requests = []

    # --- what happens on this host --------------------------------------------------------------------------

    def _start_next(self) -> None:
        if self._to_start and self.spawner is not None:
            rank = self._to_start.popleft()
            self.spawner.start_rank(rank, self._call)
            self.stdin.given(rank)

    def _on_spawner(self) -> None:
        if self.spawner is None:
            return
        messages = self.spawner.receive()
        if messages is None:
            self._on_spawner_gone(self.spawner)
            return
        for message in messages:
            if message["t"] == "started":
                self.ranks[message["rank"]].pid = message["pid"]
                self.guard.note(f"started rank {message['rank']}, process {message['pid']}")
                self._start_next()
            elif message["t"] == "exit":
                self._on_exit(self.ranks[message["rank"]], message)
            elif message["t"] == "store":
                self.spawner.store = message["pid"]
            elif message["t"] == "storeless":
                if self.spawner.has_lost_store(message):
                    self.send(message)
            elif message["t"] == "stray":
                self._strays[message["number"]] = time.monotonic()
            elif self._prepare_request is not None:  # ready or broken
                self.send({"re": self._prepare_request, **message})
                self._prepare_request = None

    def _on_spawner_gone(self, spawner: Spawner) -> None:
        """The spawner died: its ranks died with it, and whatever they started is ours now."""
        self.selector.unregister(spawner.socket)
        spawner.socket.close()
        self.spawner = None
        if self._prepare_request is not None:
            self.send({"re": self._prepare_request, "t": "broken", "module": "", "error": "it died", "traceback": ""})
            self._prepare_request = None
        self._to_start.clear()
        for rank in self.ranks.values():
            if not rank.exited:
                self._on_exit(rank, {"status": -signal.SIGKILL, "time": time.time()})
        self.send({"t": "broken"})

    def _on_exit(self, rank: Rank, message: dict[str, Any]) -> None:
        """A rank has ended: send what it wrote last, then its end."""
        rank.exited = True
        self.stdin.ended(rank)
        for stream in rank.streams:
            # Until the pipe is empty, not until it closes: a child the rank left behind may hold it open.
            for _ in range(_DRAIN):
                if not self._on_stream(stream):
                    break
        end: dict[str, Any] = {"t": "exit", "rank": rank.number, "stopped_at": rank.stopped_at}
        end["stdin"] = rank.has_stdin
        for name in ("status", "time", "rss"):
            end[name] = message.get(name, 0)
        if end["status"] != 0 and (rank.stopped_at is None or end["status"] > 0):
            from ..rank import post_mortem

            try:
                end["facts"] = post_mortem.facts(self._kills[0], [*rank.paths, *self._folders])
            except Exception as error:
                self.guard.failed("why a rank failed", error)
        self.send(end)

    def _on_stream(self, stream: Stream) -> bool:
        """Pass on what a rank wrote or reported; False when there is nothing more to read now."""
        if stream.read < 0:
            return False
        try:
            data = os.read(stream.read, 1 << 16)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""  # the end of a rank that had not read what it was asked
        if stream.number == 3:
            for line in stream.reports.lines(data):
                self._pass_report(stream.rank, line)
        else:
            text = stream.decoder.decode(data, final=not data)
            if text:
                self.send({"t": "out", "rank": stream.rank, "stream": stream.number, "text": text})
                if self.ranks[stream.rank].has_stdin:
                    self.prompts.wrote(stream, text)
        if not data:
            self._forget(stream)
        return bool(data)

    def _pass_report(self, rank: int, line: bytes) -> None:
        """Pass a report on with the number of its rank; a result of hundreds of megabytes is not taken apart for it."""
        before, _, after = line.partition(_PIECE)
        if not before and not after.partition(b'"')[0].translate(None, _BASE64):
            self.transmit(line[:-1] + b',"rank":%d}\n' % rank)
            return
        try:
            message: dict[str, Any] = {**json.loads(line), "rank": rank}
        except (ValueError, TypeError):
            return  # a script that closes and reuses descriptors wrote into it
        if message.get("t") == "sampling":
            self.ranks[rank].thread = int(message.get("thread", 0))
        elif message.get("t") == "answer":
            for look in self._looks:
                look.answer(rank, message)
        elif message.get("t") in ("marked", "moved"):
            if self.stopping is not None:
                self.stopping.on_answer(rank, message)
        else:
            self.ranks[rank].paths = message.pop("paths", self.ranks[rank].paths)
            self.send(message)

    def _watch(self, stream: Stream) -> None:
        if stream.read >= 0 and not self._paused and stream.read not in self.selector.get_map():
            self.selector.register(stream.read, selectors.EVENT_READ, lambda: self._on_stream(stream))

    def _unwatch(self, stream: Stream) -> None:
        if stream.read >= 0 and stream.read in self.selector.get_map():
            self.selector.unregister(stream.read)

    def _forget(self, stream: Stream) -> None:
        self._unwatch(stream)
        stream.close_read()

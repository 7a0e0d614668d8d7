"""The agent's loop: messages from the controller in, what happens on this host out."""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time

from . import machine, processes, usercode
from .network import Dial, Listener, free_port, owner_of, resolve_own_name
from .ranks import Rank, Spawner, Stopping, Stream, exit_event
from .wire import GREETING, LAST_GRACE, LEASE, LineReader, Writer, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

_ENOUGH = 1 << 20
"""Unsent bytes above which no more output is read from ranks: the controller is slower than they are."""


def main(config: dict[str, Any]) -> int:
    """Serve one controller until it says goodbye, goes silent, or the connection closes; leave no process behind."""
    channel_in, channel_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # a stray print must not reach the channel
    os.close(null)
    processes.adopt_orphans()
    return Agent(channel_in, channel_out, config["job"]).run()


class Agent:
    """All that one host does for one job."""

    def __init__(self, channel_in: int, channel_out: int, job: str) -> None:
        self.job = job
        self.input = channel_in
        self.reader = LineReader()
        self.output = Writer(channel_out)
        self.selector = selectors.DefaultSelector()
        self.last_heard = time.monotonic()
        self.ending = ""
        self.grace = LAST_GRACE
        self.ranks: dict[int, Rank] = {}
        self.spawner: Spawner | None = None
        self.stopping: Stopping | None = None
        self.stop_request: int | None = None
        self.listener: Listener | None = None
        self.held_port: socket.socket | None = None
        self.dials: dict[Dial, int] = {}
        self.dial_results: dict[int, list[dict[str, Any]]] = {}
        self.unpacking: usercode.Unpacking | None = None
        self.prepare_request: int | None = None
        self.oom_before = machine.oom_kills()
        self.reading_ranks = True

    # --- the loop -------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Loop until there is a reason to end, then end every process of the job."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: self.end(f"the agent got {signal.Signals(number).name}"))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.selector.register(wake_read, selectors.EVENT_READ, lambda: self.on_wake(wake_read))
        self.selector.register(self.input, selectors.EVENT_READ, self.on_input)
        try:
            self.transmit(GREETING + encode({"t": "up", **machine.facts()}))
            while not self.ending:
                self.turn()
        except Exception as error:
            self.send({"t": "failed", "error": f"{type(error).__name__}: {error}"})
            raise
        finally:
            self.stop_everything()
        return 0

    def turn(self) -> None:
        """Wait for something to happen, at most until the next timer, and handle it."""
        busy = self.stopping is not None or bool(self.dials)
        for key, _ in self.selector.select(0.02 if busy else 0.5):
            key.data()
        self.match_flow()
        if self.stopping is not None:
            self.step_stopping()
        for dial in [dial for dial in self.dials if time.monotonic() > dial.deadline]:
            dial.finish("no answer" if not dial.connected else "connected, but nothing was said")
        if time.monotonic() - self.last_heard > LEASE:
            self.end("the controller has been silent")

    def end(self, reason: str) -> None:
        """Leave the loop; the first reason counts."""
        self.ending = self.ending or reason

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message to the controller."""
        self.transmit(encode(message))

    def transmit(self, data: bytes = b"") -> None:
        """Write what is queued, and `data` after it; a reader that has gone is a reason to end, not to crash."""
        try:
            self.output.send(data)
        except OSError:
            self.end("the connection closed")

    def match_flow(self) -> None:
        """Watch the channel for writing while something is unsent, and pause the ranks' output when it is much."""
        watched = self.output.fd in self.selector.get_map()
        if self.output.pending and not watched:
            self.selector.register(self.output.fd, selectors.EVENT_WRITE, self.transmit)
        elif not self.output.pending and watched:
            self.selector.unregister(self.output.fd)
        read = self.output.pending < _ENOUGH
        if read != self.reading_ranks:
            self.reading_ranks = read
            for rank in self.ranks.values():
                for stream in rank.streams:
                    if read and stream.read >= 0:
                        self.watch(stream)
                    elif not read and stream.read in self.selector.get_map():
                        self.selector.unregister(stream.read)

    def on_wake(self, fd: int) -> None:
        """A signal came: forget its byte, and see whether a child of ours has ended."""
        try:
            os.read(fd, 4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return

    def on_input(self) -> None:
        """Read from the controller; its end of the channel closing is our end too."""
        data = os.read(self.input, 1 << 16)
        if not data:
            self.end("the connection closed")
            return
        self.last_heard = time.monotonic()
        for message in self.reader.feed(data):
            reply = getattr(self, "do_" + message["do"])(message)
            if reply is not None:
                self.send({"re": message["id"], **reply})

    # --- what the controller asks for -----------------------------------------------------------------------

    def do_ping(self, message: dict[str, Any]) -> None:
        """Answer with our clock, so that the controller can tell how far it is off."""
        self.send({"t": "pong", "sent": message["sent"], "time": time.time()})

    def do_compare(self, message: dict[str, Any]) -> dict[str, Any]:
        """Is the user's code here?"""
        return usercode.compare(message["cwd"], message["script"], message["digest"])

    def do_unpack(self, message: dict[str, Any]) -> dict[str, Any]:
        """Take a piece of the working directory; the last one returns its folder."""
        self.unpacking = self.unpacking or usercode.Unpacking(self.job)
        self.unpacking.add(message["piece"])
        if not message["last"]:
            return {}
        try:
            return {"folder": self.unpacking.finish()}
        except OSError as error:
            return {"problem": str(error)}

    def do_listen(self, message: dict[str, Any]) -> dict[str, Any]:
        """Open a port for the other hosts to try; on the master's host it becomes the master port."""
        try:
            self.listener = Listener(message["port"], message["nonce"])
        except OSError as error:
            return {"problem": error.strerror or str(error), "owner": owner_of(message["port"])}
        self.selector.register(self.listener.socket, selectors.EVENT_READ, self.listener.answer)
        return {"port": self.listener.port, "own_name": resolve_own_name()}

    def do_dial(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Try every address in the list at once; the reply comes when all have an outcome."""
        request = message["id"]
        self.dial_results[request] = []
        for target in message["targets"]:
            dial = Dial(target, self.on_dial_done)
            self.dials[dial] = request
            if dial.failed_at_once:
                dial.finish(os.strerror(dial.code).lower())
            else:
                self.selector.register(
                    dial.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, lambda d=dial: self.on_dial(d)
                )
        return {"results": []} if not message["targets"] else None

    def on_dial(self, dial: Dial) -> None:
        """A dialled socket is connected or has an answer; once connected, only an answer is of interest."""
        if dial not in self.dials:
            return
        dial.on_ready()
        if dial in self.dials and dial.connected:
            self.selector.modify(dial.socket, selectors.EVENT_READ, lambda: self.on_dial(dial))

    def on_dial_done(self, dial: Dial, problem: str, local_address: str) -> None:
        """Collect one outcome and reply with the last one."""
        request = self.dials.pop(dial)
        for key in [key for key in self.selector.get_map().values() if key.fileobj is dial.socket]:
            self.selector.unregister(key.fileobj)
        results = self.dial_results[request]
        results.append({**dial.target, "problem": problem, "from": local_address})
        if request not in self.dials.values():
            self.send({"re": request, "results": self.dial_results.pop(request)})

    def do_hold(self, message: dict[str, Any]) -> dict[str, Any]:
        """Stop listening; with `keep`, hold the port for rank 0, or a new one when `fresh`."""
        port = 0
        if self.listener is not None:
            self.selector.unregister(self.listener.socket)
            self.listener.socket.close()
            if message["keep"]:
                self.held_port = self.listener.holder
            else:
                self.listener.holder.close()
            self.listener = None
        if message.get("fresh"):
            if self.held_port is not None:
                self.held_port.close()
            try:
                self.held_port = free_port(message["fresh_port"])
            except OSError as error:
                return {"problem": error.strerror or str(error), "owner": owner_of(message["fresh_port"])}
        if self.held_port is not None:
            port = self.held_port.getsockname()[1]
        return {"port": port}

    def do_prepare(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Start the process that will start the ranks; with a zygote the reply comes after its imports."""
        env = {**os.environ, **message["env"]}
        folder = os.path.dirname(sys.executable)
        if folder not in env.get("PATH", "").split(os.pathsep):
            # As in an activated environment: what the script starts (python, ninja) is this interpreter's.
            env["PATH"] = os.pathsep.join(filter(None, [folder, env.get("PATH")]))
        env["PWD"] = message["cwd"]
        self.grace = message["grace"]
        self.spawner = Spawner()
        if not message["preload"]:
            self.spawner.start_plain(env, message["cwd"], keep=1 << 16)
            self.selector.register(self.spawner.socket, selectors.EVENT_READ, self.on_spawner)
            return {"seconds": 0.0, "unsafe": ""}
        self.prepare_request = message["id"]
        config = {name: message[name] for name in ("preload", "cwd", "module", "target")}
        self.spawner.start_zygote(config, env)
        self.selector.register(self.spawner.socket, selectors.EVENT_READ, self.on_spawner)
        return None

    def do_start(self, message: dict[str, Any]) -> dict[str, Any]:
        """Start this host's ranks of a new attempt."""
        assert self.spawner is not None
        self.ranks = {}
        self.oom_before = machine.oom_kills()
        for request in message["ranks"]:
            rank = Rank(request["rank"])
            self.ranks[rank.number] = rank
            self.spawner.start_rank(rank, request)
            for stream in rank.streams:
                self.watch(stream)
        return {}

    def do_stop(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """End all ranks and what they started; the reply comes when they are gone."""
        if self.stopping is not None:  # a second, harder stop: the first one's request is answered with it
            self.stopping.kill_at = min(self.stopping.kill_at, time.monotonic() + message["grace"])
            return {"left": []}
        if self.spawner is None:
            return {"left": []}
        self.stop_request = message["id"]
        self.stopping = Stopping(self.ranks, self.spawner.pid, message["grace"])
        return None

    def do_bye(self, message: dict[str, Any]) -> None:
        """The job is over."""
        self.end("bye")

    # --- what happens on this host ---------------------------------------------------------------------------

    def watch(self, stream: Stream) -> None:
        """Read a rank's descriptor whenever it has something."""
        self.selector.register(stream.read, selectors.EVENT_READ, lambda: self.on_stream(stream))

    def on_stream(self, stream: Stream) -> bool:
        """Pass on what a rank wrote or reported; False when there is nothing more to read now."""
        if stream.read < 0:
            return False
        try:
            data = os.read(stream.read, 1 << 16)
        except BlockingIOError:
            return False
        if stream.number == 3:
            for report in stream.reports.feed(data):
                self.send({**report, "rank": stream.rank})
        else:
            text = stream.decoder.decode(data, final=not data)
            if text:
                self.send({"t": "out", "rank": stream.rank, "stream": stream.number, "text": text})
        if not data:
            if stream.read in self.selector.get_map():
                self.selector.unregister(stream.read)
            os.close(stream.read)
            stream.read = -1
        return bool(data)

    def on_spawner(self) -> None:
        """Handle what the spawner says; without it there can be no ranks."""
        assert self.spawner is not None
        messages = self.spawner.receive()
        if messages is None:
            self.on_spawner_gone()
            return
        for message in messages:
            if message["t"] == "started":
                self.ranks[message["rank"]].pid = message["pid"]
            elif message["t"] == "exit":
                self.on_exit(self.ranks[message["rank"]], message)
            elif self.prepare_request is not None:  # ready or broken
                self.send({"re": self.prepare_request, **message})
                self.prepare_request = None

    def on_exit(self, rank: Rank, message: dict[str, Any]) -> None:
        """A rank has ended: send what it wrote last, then its end."""
        rank.exited = True
        for stream in rank.streams:
            # Until the pipe is empty, not until it closes: a child the rank left behind may hold it open.
            while self.on_stream(stream):
                pass
        self.send(exit_event(rank, message, self.oom_before))

    def on_spawner_gone(self) -> None:
        """The spawner died: ranks died with it, and whatever they started is ours now."""
        assert self.spawner is not None
        self.selector.unregister(self.spawner.socket)
        if self.prepare_request is not None:
            self.send(
                {
                    "re": self.prepare_request,
                    "t": "broken",
                    "module": "",
                    "error": "the zygote died",
                    "traceback": "",
                }
            )
            self.prepare_request = None
        for rank in self.ranks.values():
            if not rank.exited:
                self.on_exit(rank, {"status": -signal.SIGKILL, "time": time.time(), "peak": 0})
        if not self.ending:
            self.send({"t": "broken"})

    def step_stopping(self) -> None:
        """Go on with ending the ranks, and reply when they are gone."""
        assert self.stopping is not None
        if self.stopping.step():
            left = self.stopping.left()
            self.send({"re": self.stop_request, "left": left})
            self.stopping = None

    def stop_everything(self) -> None:
        """The end of the agent: ranks get a short grace, then everything below is killed, the spawner last."""
        if self.spawner is None:
            return
        stopping = self.stopping or Stopping(self.ranks, self.spawner.pid, min(self.grace, LAST_GRACE))
        while not stopping.step():
            for key, _ in self.selector.select(0.02):
                if key.fileobj is self.spawner.socket:
                    key.data()
        processes.kill([self.spawner.pid], signal.SIGKILL)

"""Reaches an agent behind ssh or in a pod again: a new connection, and a small program that leads to its socket."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from muster.controller.links.child_process import Child, StartChild
from muster.controller.links.resuming import Resuming
from muster.errors import HostError
from muster.shared.events import Bridge

if TYPE_CHECKING:
    from muster.controller.links.link import AgentLink

BETWEEN = 1.0
"""Seconds between two attempts. A packet that is lost costs an attempt, so the next one does not wait for it."""

_LIMIT = 5.0
"""Seconds for one attempt."""

_WAIT = 6.0
"""Seconds that an agent waits after ssh has ended: a controller that is alive notices this too, and is back soon."""

_PER_SECOND = 32
"""Maximum number of logins per second for all hosts; each takes 0.1 s of CPU."""

_log = logging.getLogger("muster.link")

GREETING = b"\x1emuster-bridge\x1e\n"
"""What the program on the host writes first."""

# It ends with its agent or with its ssh connection. If only its stdin ends, the controller has closed it, and the agent
# sees the same; if its stdout is closed, too, ssh has ended. It imports only modules in C, which takes 20 ms less.
# SIGALRM ends it while the agent, which may be frozen, does not accept connections.
_BRIDGE = """\
import os,select,_signal,_socket,_thread
def copy():
 while 1:
  data=os.read(0,65536)
  if not data:break
  peer.sendall(data)
 peer.shutdown(1)
place=open("/proc/sys/kernel/random/boot_id").read().strip()+" "+os.readlink("/proc/self/ns/net")
peer=_socket.socket(_socket.AF_UNIX)
_signal.alarm({limit})
try:peer.connect("\\0"+{name!r});found=True
except ConnectionRefusedError:found=False
_signal.alarm(0)
os.write(1,{greeting!r}+b'{{"t":"bridge","place":"%s","found":%s}}\\n'%(place.encode(),(b"false",b"true")[found]))
if not found:os._exit(0)
_thread.start_new_thread(copy,())
poll=select.poll()
poll.register(peer,select.POLLIN)
poll.register(1,0)
try:
 while 1:
  ready=dict(poll.poll())
  if 1 in ready:break
  data=peer.recv(65536)
  if not data:break
  while data:data=data[os.write(1,data):]
except OSError:pass
os._exit(0)
"""


def bridge(name: str) -> bytes:
    """The line that turns `python -c` of an agent's start command into a bridge to the agent's socket."""
    return b"exec(" + ascii(_BRIDGE.format(name=name, greeting=GREETING, limit=math.ceil(_LIMIT))).encode() + b")\n"


class BridgeLine:
    """A connection to an agent's socket; it becomes the connection of the link when the agent has proved itself."""

    way_back = None
    why_lost = "connection lost"

    def __init__(self, link: AgentLink, reconnect: Reconnect, argv: Sequence[str]) -> None:
        self.begin = time.monotonic()
        self._link = link
        self._reconnect = reconnect
        self._resuming: Resuming | None = Resuming(link.lines, self, greeting=GREETING, on_bridge=self._on_bridge)
        start = reconnect.start
        self.child = start(argv, on_data=self._on_data, on_words=self._on_words, on_closed=self._on_closed)
        self.child.send(bridge(link.lines.name))

    @property
    def has_asked(self) -> bool:
        """Whether the agent may continue over this connection."""
        return self._resuming is None or self._resuming.has_asked

    def _on_data(self, data: bytes) -> None:
        if self._resuming is None:
            self._link.on_data(data)
        elif not self._resuming.on_data(data):
            self._reconnect.failed(self)
        elif self._link.lines.line is self:
            self._resuming = None

    def _on_bridge(self, message: Bridge) -> bool:
        return self._reconnect.leads_to_agent(message)

    def _on_words(self, data: bytes) -> None:
        _log.debug("%s: %s", self._link.name, data.decode(errors="replace").strip())

    def _on_closed(self) -> None:
        if self._resuming is None:
            self._link.on_closed(self)
        else:
            self._reconnect.failed(self)

    def send(self, data: bytes) -> None:
        """Write without blocking."""
        self.child.send(data)

    def close(self) -> None:
        """Drop the connection."""
        self.child.close(kill=True)

    def leave(self) -> None:
        """Close the connection when what was sent has left, or after a moment."""
        self.child.leave()

    async def explain(self, noise: str) -> HostError:
        """An agent behind a bridge was up before."""
        return HostError(self._link.name, self.why_lost)


class Reconnect:
    """Tries new connections to the agent of a link, one every second, until one works or the link is lost."""

    running: ClassVar[set[Reconnect]] = set()
    """Those of all links, which share the number of logins per second."""

    def __init__(
        self,
        link: AgentLink,
        commands: Sequence[Sequence[str]],
        *,
        boxed: bool,
        wait: float = _WAIT,
        start: StartChild = Child,
    ) -> None:
        """`commands` are tried in turn."""
        self.boxed = boxed
        self.wait = wait
        self.start = start
        self._link = link
        self._commands = commands
        self._lines: list[BridgeLine] = []
        self._task: asyncio.Task[None] | None = None
        self._due = 0.0

    def begin(self) -> None:
        """Try until `end`."""
        if self._task is None:
            _log.info("%s: connecting again", self._link.name)
            self.running.add(self)
            self._task = asyncio.ensure_future(self._try())

    def end(self, keep: object = None) -> None:
        """Stop trying, and drop all connections but the one to `keep`."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self.running.discard(self)
        for line in self._lines:
            if line is not keep:
                line.close()
        self._lines = []

    async def _try(self) -> None:
        number = 0
        while True:
            # Also if it has just begun, because each connection that worked broke at once.
            await asyncio.sleep(max(0.0, self._due - time.monotonic()))
            self._due = time.monotonic() + max(BETWEEN, len(self.running) / _PER_SECOND)
            old = time.monotonic() - _LIMIT
            for line in [line for line in self._lines if line.begin < old]:
                self.failed(line)
            try:
                self._lines.append(BridgeLine(self._link, self, self._commands[number % len(self._commands)]))
            except OSError as error:
                _log.warning("%s: %s", self._link.name, error)
            number += 1

    def failed(self, line: BridgeLine) -> None:
        """A connection led nowhere."""
        line.close()
        if line in self._lines:
            self._lines.remove(line)
        self._link.lines.failed_to_resume(line)

    def leads_to_agent(self, bridge: Bridge) -> bool:
        """Whether a bridge has found the agent; if nobody listens on its socket on its host, the agent is dead."""
        if bridge["place"] != self._link.facts["place"]:  # anybody may listen under this name elsewhere
            _log.info("%s: another host, or another boot of it, answers", self._link.name)
            return False
        if not bridge["found"]:
            self.on_dead()
        return bridge["found"]

    def on_dead(self) -> None:
        """The agent is known to be dead."""
        self._link.lose("its agent died")

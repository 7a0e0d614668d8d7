"""Connection tests between hosts: a listener that identifies itself, and a client that tries many addresses at once."""

from __future__ import annotations

import errno
import os
import select
import time

from ..shared import light_selectors as selectors
from ..shared import light_socket as socket
from ..shared import machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..shared import replies, requests

DIAL_LIMIT = 3.0
"""Timeout in seconds per address; long enough for one lost SYN, which the kernel resends after 1 s."""


_ANSWERED_AT_ONCE = 128
"""Maximum number of connections that are answered before the agent does other work."""

BACKLOG = 1024
"""Listen backlog; all ranks of a job connect to its store at once."""


def free_port(port: int = 0) -> socket.socket:
    """A socket bound to `port` (0: any free one) on all addresses, including IPv6 if the host has it."""
    family = socket.AF_INET6 if _has_ipv6() else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
    except OSError:
        sock.close()
        raise
    return sock


def _has_ipv6() -> bool:
    return socket.has_ipv6 and os.path.exists("/proc/net/if_inet6")


class Listener:
    """Answers every connection with this agent's nonce, so that the client knows which agent it reached."""

    def __init__(self, port: int, nonce: str) -> None:
        self.socket = free_port(port)
        self.nonce = nonce
        self.port: int = self.socket.getsockname()[1]
        # A second socket on the same port, bound before the first one listens and never listening itself, keeps the
        # port reserved when the listener closes. The kernel then gives the port only to a process that requests this
        # number with SO_REUSEADDR, as torch does for MASTER_PORT.
        self.holder = free_port(self.port)
        self.socket.listen(BACKLOG)
        self.socket.setblocking(False)

    def keep(self, whom: str) -> socket.socket | None:
        """Reserve the port for the `store`, which gets the listening socket, or for `rank 0`, which binds it."""
        kept = {"store": self.socket, "rank 0": self.holder}.get(whom)
        for one in (self.socket, self.holder):
            if one is not kept:
                one.close()
        return kept

    def answer(self) -> None:
        """Answer waiting connections; 40 bytes fit into the buffer of a new socket, so this never blocks.

        Anyone can connect without end, so the agent does other work in between.
        """
        for _ in range(_ANSWERED_AT_ONCE):
            try:
                caller, _ = self.socket.accept()
            except OSError:
                return
            with caller:
                try:
                    caller.send(self.nonce.encode() + b"\n")
                except OSError:
                    pass


class Dial:
    """One attempt to reach one address."""

    def __init__(self, target: requests.DialTarget) -> None:
        self.target = target
        self.deadline = time.monotonic() + DIAL_LIMIT
        self.connected = False
        self.problem: str | None = None
        """Empty if reached, None if not known yet."""
        address = target["address"] if _is_literal(target["address"]) else next(iter(resolve(target["address"])), "")
        self.socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        if not address:
            self.problem = "could not resolve this name"
            return
        code = self.socket.connect_ex((address, target["port"]))
        if code not in (0, errno.EINPROGRESS):
            self.problem = os.strerror(code).lower()

    def on_ready(self) -> None:
        """Continue when the socket is writable (connected) or readable (the nonce has arrived)."""
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.problem = os.strerror(code).lower()
            return
        try:
            answer = self.socket.recv(64)
        except BlockingIOError:
            self.connected = True
            return
        except OSError as error:
            self.problem = (error.strerror or str(error)).lower()
            return
        if answer.decode(errors="replace").strip() == self.target["nonce"]:
            self.problem = ""
        else:
            self.problem = "another machine or program answered"

    def give_up(self) -> None:
        """Fail because of the timeout."""
        self.problem = "connected, but received nothing" if self.connected else "no answer"


class Dialing:
    """Many connection attempts at once for one request; replies when all have an outcome."""

    def __init__(self, selector: selectors.Selector, send: Callable[[Mapping[str, object]], None]) -> None:
        self.selector = selector
        self.send = send
        self._request = 0
        self._dials: list[Dial] = []

    @property
    def busy(self) -> bool:
        """Whether an attempt has no outcome yet."""
        return bool(self._dials)

    def begin(self, message: requests.Dial, request: int) -> None:
        """Connect to all targets at once; the reply is sent when all have an outcome."""
        for dial in self._dials:  # the controller does not wait for those any more
            if dial.problem is None:
                self.selector.unregister(dial.socket)
            dial.socket.close()
        self._request = request
        self._dials = [Dial(target) for target in message["targets"]]
        for dial in self._dials:
            if dial.problem is None:
                events = selectors.EVENT_READ | selectors.EVENT_WRITE
                self.selector.register(dial.socket, events, lambda dial=dial: self._on_ready(dial))
        if not self._dials:
            self.send({"re": request, "results": []})

    def _on_ready(self, dial: Dial) -> None:
        dial.on_ready()
        if dial.problem is not None:
            self.selector.unregister(dial.socket)
        elif dial.connected:  # now wait only for the answer
            self.selector.modify(dial.socket, selectors.EVENT_READ, lambda: self._on_ready(dial))

    def end(self) -> None:
        """Give up all attempts without a reply."""
        for dial in self._dials:
            if dial.problem is None:
                self.selector.unregister(dial.socket)
            dial.socket.close()
        self._dials = []

    def step(self) -> None:
        """Give up attempts that take too long, and reply when all have an outcome."""
        for dial in self._dials:
            if dial.problem is None and time.monotonic() > dial.deadline:
                self.selector.unregister(dial.socket)
                dial.give_up()
        if self._dials and all(dial.problem is not None for dial in self._dials):
            results = [{**dial.target, "problem": dial.problem} for dial in self._dials]
            for dial in self._dials:
                dial.socket.close()
            self._dials = []
            self.send({"re": self._request, "results": results})


def _is_literal(address: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, address)
            return True
        except OSError:
            continue
    return False


def own_addresses() -> list[str]:
    """The addresses that this host's name resolves to, in the order in which gloo tries them.

    They are usually in /etc/hosts, which the resolver reads first; reading it here avoids a child process.
    """
    name = os.uname().nodename
    return [entry[0] for entry in machine.hosts_entries(name)] or resolve(name)


def resolve(name: str, limit: float = 1.0) -> list[str]:
    """The addresses that a name resolves to on this host, in the resolver's order; empty on failure or timeout.

    The resolver has no timeout, so a child process calls it.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            os.write(write, ",".join(dict.fromkeys(str(info[4][0]) for info in answers)).encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        ready, _, _ = select.select([read], [], [], limit)
        text = os.read(read, 4096).decode() if ready else ""
    finally:
        os.close(read)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return [address for address in text.split(",") if address]


def port_in_use(error: OSError, port: int) -> replies.Port:
    """The reply if a port could not be opened, with the process that owns it."""
    return {"problem": error.strerror or str(error), "owner": owner_of(port), "port": 0}


def owner_of(port: int) -> str | None:
    """The process that listens on a TCP port, as `pid 123 (python train.py)`; None if it is not visible."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        rows = [line.split() for line in machine.read_text(table).splitlines()[1:]]
        inodes |= {row[9] for row in rows if int(row[1].rpartition(":")[2], 16) == port and row[3] == "0A"}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                links = {os.readlink(f"/proc/{name}/fd/{fd}") for fd in os.listdir(f"/proc/{name}/fd")}
                if links & wanted:
                    with open(f"/proc/{name}/cmdline", "rb") as file:
                        command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
                    shown = "".join(letter if letter.isprintable() else " " for letter in command[:60])
                    return f"pid {name} ({shown})"  # it may be of another user
            except OSError:
                continue
    return None

"""Sockets: the port of rank 0, connecting to it, and closing connections to other ranks after a failure."""

from __future__ import annotations

import os
import socket

from muster.errors import MusterError, UsageError
from muster.rank.world.gloo import is_outward
from muster.rank.world.waiting import wait_for


def listen(port: int) -> socket.socket:
    """Listen on a port (0: any free one) on all interfaces of this host."""
    dual = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            ("", port),
            family=socket.AF_INET6 if dual else socket.AF_INET,
            dualstack_ipv6=dual,
            backlog=socket.SOMAXCONN,
        )
    except OSError as error:
        raise UsageError(
            f"rank 0 could not listen on port {port} of {socket.gethostname()}: {os.strerror(error.errno or 0)}",
            hint="set MASTER_PORT to a free port, the same on all ranks",
        ) from None


def leads_here(addr: str, port: int) -> bool:
    """Whether a connection to `addr`, on a port that this host listens on, reaches this host."""
    try:
        with socket.create_connection((addr, port), timeout=2) as connection:
            peer = str(connection.getpeername()[0])
            return peer == connection.getsockname()[0] or not is_outward(peer)  # Debian: 127.0.1.1
    except (OSError, UnicodeError):
        return False


def reach(addr: str, port: int, *, who: str, limit: float) -> None:
    """Wait until `addr` accepts a connection on `port`; raise MusterError after `limit` seconds."""
    last = "no attempt yet"

    def answers() -> bool:
        nonlocal last
        try:
            socket.create_connection((addr, port), timeout=min(5.0, max(limit, 0.1))).close()
        except (OSError, UnicodeError) as error:  # UnicodeError: a name such as `a..b`
            last = getattr(error, "strerror", None) or str(error)
            return False
        return True

    def what() -> str:
        return f"{who} is waiting for rank 0 at {addr}:{port}: {last}"

    if not wait_for(answers, limit, what):
        raise MusterError(
            f"{who} could not reach rank 0 at {addr}:{port} within {limit:.0f} s: {last}",
            hint="check that rank 0 is running, and that other hosts can reach its host at MASTER_ADDR",
        )


def open_sockets() -> frozenset[tuple[int, str]]:
    """The sockets of this process as (number, identity); empty without /proc."""
    found: set[tuple[int, str]] = set()
    try:
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue  # the descriptor of the directory listing itself
            if target.startswith("socket:"):
                found.add((int(name), target))
    except FileNotFoundError:
        pass
    return frozenset(found)


def hang_up(sockets: frozenset[tuple[int, str]]) -> None:
    """Shut down those of the sockets that are still open and connected.

    A gloo operation that waits for another rank then fails at once. Otherwise destroying the group, and even
    exiting the interpreter, would wait for it until the group's timeout (torch 2.13).
    """
    for number, _ in sockets & open_sockets():
        try:
            connection = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        with connection:
            try:
                connection.getpeername()  # raises for a listening socket, which must stay open because gloo would abort
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

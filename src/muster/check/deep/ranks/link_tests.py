"""Measure the links between hosts over plain sockets with timeouts; a collective over a broken link would hang."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .world import World

SIZES = (64, 512, 1400, 8900, 65536, 1 << 20)
"""Message sizes in bytes: below and above the common MTUs, and large enough to fill a TCP window."""

SHORT = 2.0
"""Timeout in seconds for a message of up to 64 KB."""

LONG = 10.0
"""Timeout in seconds for 1 MB, which a link of 1 Mbit/s meets."""

LOAD_SECONDS = 0.3
MOST_LOAD = 256 << 20


def rounds(hosts: int) -> list[list[tuple[int, int]]]:
    """Every pair of hosts once, in rounds: one pair at a time for up to four hosts, disjoint pairs for more."""
    if hosts <= 4:
        return [[(a, b)] for a in range(hosts) for b in range(a + 1, hosts)]
    circle: list[int | None] = [*range(hosts), *([None] if hosts % 2 else [])]
    schedule: list[list[tuple[int, int]]] = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]))  # noqa: B905
        schedule.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return schedule


def own_address(world: World) -> str:
    """The local address that is used to reach rank 0."""
    if world.host == 0:
        return world.master
    family = socket.AF_INET6 if ":" in world.master else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((world.master, world.port))
        return str(sock.getsockname()[0])


def measure_links(world: World) -> list[dict[str, object]]:
    """Measure every link of this host in both directions; the result has only those in which it sends."""
    address = own_address(world)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found: list[dict[str, object]] = []
    with socket.create_server((address, 0), family=family) as server:
        server.settimeout(LONG)
        world.store.set(f"address/{world.host}", json.dumps([address, server.getsockname()[1]]))
        peers = [json.loads(world.store.get(f"address/{host}")) for host in range(world.hosts)]
        for number, pairs in enumerate(rounds(world.hosts)):
            world.together(f"round/{number}", world.hosts)
            for a, b in pairs:
                if world.host in (a, b):
                    found.append(try_link(world, server, peers, a, b))
    return found


def try_link(world: World, server: socket.socket, peers: list[Any], a: int, b: int) -> dict[str, object]:
    """Measure one pair and return the direction in which this host sends.

    Host `a` opens all connections. A direction that fails is retried once.
    """
    mine: dict[str, object] = {}
    peer = b if world.host == a else a
    for sender in (a, b):
        for attempt in range(2):
            result: dict[str, object] = {"sender": world.host, "receiver": peer}
            try:
                conn = call(peers[b]) if world.host == a else server.accept()[0]
            except OSError as error:
                result["problem"] = str(error)
                conn = None
            if conn is not None:
                with conn:
                    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if world.host == sender:
                        result.update(send_all(conn))
                    else:
                        receive_all(conn)
            verdict = f"pair/{a}/{b}/{sender}/{attempt}"
            if world.host == sender:
                mine = result
                world.store.set(verdict, "bad" if "hole" in result or "problem" in result else "good")
            if world.store.get(verdict) == b"good":
                break
    return mine


def call(address: list[Any]) -> socket.socket:
    """Connect to a peer's server."""
    return socket.create_connection((address[0], address[1]), timeout=LONG)


def send_all(conn: socket.socket) -> dict[str, object]:
    """Send one message of each size and wait for its acknowledgment, then send under load."""
    times: dict[str, float] = {}
    data = bytes(1 << 20)
    for size in SIZES:
        begin = time.perf_counter()
        conn.settimeout(SHORT if size <= 65536 else LONG)
        try:
            conn.sendall(data[:size])
            if conn.recv(1) != b"+":
                raise OSError("closed")
        except OSError:
            return {"times": times, "hole": size}
        times[str(size)] = time.perf_counter() - begin
    pieces = max(1, min(MOST_LOAD, int(LOAD_SECONDS / times[str(1 << 20)] * (1 << 20))) >> 20)
    before = counters(conn)
    begin = time.perf_counter()
    try:
        conn.settimeout(LONG)
        conn.sendall(struct.pack("!I", pieces))
        for _ in range(pieces):
            conn.sendall(data)
        if conn.recv(1) != b"+":
            raise OSError("closed")
    except OSError as error:
        return {"times": times, "problem": str(error)}
    taken = time.perf_counter() - begin
    after = counters(conn)
    return {
        "times": times,
        "rate": (pieces << 20) / taken,
        "sent": after[0] - before[0],
        "again": after[1] - before[1],
    }


def counters(conn: socket.socket) -> tuple[int, int]:
    """Segments sent and segments lost and retransmitted, from the kernel's struct tcp_info.

    With a busy peer, TCP also retransmits segments that were not lost; the peer reports those (DSACK), and they are
    not counted.
    """
    info = conn.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < 220:
        return 0, 0
    segments, again, needless = (struct.unpack_from("=I", info, offset)[0] for offset in (136, 100, 216))
    return segments, max(0, again - needless)


def receive_all(conn: socket.socket) -> None:
    """The receiving side of `send_all`; it ends at the first message that does not arrive."""
    buffer = bytearray(1 << 20)
    try:
        for size in SIZES:
            conn.settimeout(SHORT if size <= 65536 else LONG)
            receive(conn, buffer, size)
            conn.sendall(b"+")
        conn.settimeout(LONG)
        receive(conn, buffer, 4)
        for _ in range(struct.unpack_from("!I", buffer)[0]):
            receive(conn, buffer, 1 << 20)
        conn.sendall(b"+")
    except OSError:
        pass  # the sender reports it


def receive(conn: socket.socket, buffer: bytearray, size: int) -> None:
    """Read exactly `size` bytes."""
    view = memoryview(buffer)[:size]
    while view:
        count = conn.recv_into(view)
        if not count:
            raise OSError("closed")
        view = view[count:]

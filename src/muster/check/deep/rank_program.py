"""What every rank of the deep check runs; it travels alone, so it imports torch and the standard library only.

First the links, over plain sockets with time limits of their own, because a collective over a broken link only hangs.
Then the devices, each by itself; then a process group and real collectives. Each rank prints one line of JSON
after the mark it is given.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

dist: Any = torch.distributed

SIZES = (64, 512, 1400, 8900, 65536, 1 << 20)
"""Bytes sent in one piece: below and above every usual packet size, and enough to fill a window."""

SHORT = 2.0
"""Seconds for a piece of up to 64 KB; one that takes longer is not coming."""

LONG = 10.0
"""Seconds for a megabyte: 1 Mbit/s makes it."""

LOAD_SECONDS = 0.3
MOST_LOAD = 256 << 20
WORTH_IT = 0.05
"""Seconds of an all_reduce from which none that is larger is tried."""

PATIENCE = timedelta(seconds=120)


class World:
    """Who we are, from the environment every launcher sets."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self.local = int(os.environ["LOCAL_RANK"])
        self.host = int(os.environ["GROUP_RANK"])
        self.hosts = int(os.environ["GROUP_WORLD_SIZE"])
        self.master = os.environ["MASTER_ADDR"]
        self.port = int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore(self.master, self.port, self.size, False, timeout=PATIENCE)

    def together(self, what: str, members: int) -> None:
        """Wait until all members have come to this point."""
        if self.store.add(f"{what}/count", 1) == members:
            self.store.set(f"{what}/go", "1")
        self.store.wait([f"{what}/go"], PATIENCE)


# --- links ----------------------------------------------------------------------------------------------------------


def rounds(hosts: int) -> list[list[tuple[int, int]]]:
    """Every pair of hosts once, in rounds: one pair at a time for a few hosts, disjoint pairs for many."""
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
    """The address of ours that leads to rank 0."""
    if world.host == 0:
        return world.master
    family = socket.AF_INET6 if ":" in world.master else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((world.master, world.port))
        return str(sock.getsockname()[0])


def measure_links(world: World) -> list[dict[str, Any]]:
    """Send over every link of this host, both ways; only the directions it sends in are in the result."""
    address = own_address(world)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found: list[dict[str, Any]] = []
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


def try_link(world: World, server: socket.socket, peers: list[Any], a: int, b: int) -> dict[str, Any]:
    """Our direction of one pair. `a` calls for all of it; a direction that fails is tried once more."""
    mine: dict[str, Any] = {}
    peer = b if world.host == a else a
    for sender in (a, b):
        for attempt in range(2):
            result: dict[str, Any] = {"from": world.host, "to": peer}
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


def send_all(conn: socket.socket) -> dict[str, Any]:
    """Pieces of each size, each acknowledged, then a load that takes a moment."""
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
        "sent": after["segments"] - before["segments"],
        "again": after["again"] - before["again"],
        "rtt": after["rtt"],
    }


def counters(conn: socket.socket) -> dict[str, int]:
    """From the kernel's struct tcp_info: segments sent, those lost and sent again, round trip in microseconds.

    A busy peer makes TCP send some again that were not lost; the peer tells which, and they do not count.
    """
    info = conn.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < 220:
        return {"segments": 0, "again": 0, "rtt": 0}
    segments, again, needless, rtt = (struct.unpack_from("=I", info, offset)[0] for offset in (136, 100, 216, 68))
    return {"segments": segments, "again": max(0, again - needless), "rtt": rtt}


def receive_all(conn: socket.socket) -> None:
    """The other side of `send_all`; a piece that does not come ends it."""
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
        pass  # the sender tells


def receive(conn: socket.socket, buffer: bytearray, size: int) -> None:
    """Read exactly so many bytes."""
    view = memoryview(buffer)[:size]
    while view:
        count = conn.recv_into(view)
        if not count:
            raise OSError("closed")
        view = view[count:]


# --- devices and collectives ----------------------------------------------------------------------------------------


def measure_device(world: World) -> dict[str, Any]:
    """How fast a matrix product is on this rank's device, and whether it is right: whole numbers leave no doubt."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(world.local % torch.cuda.device_count())
    device = torch.device("cuda" if cuda else "cpu")
    name = torch.cuda.get_device_name() if cuda else "CPU"
    n, times, kind = (4096, 20, torch.bfloat16) if cuda else (512, 6, torch.float32)
    left = (torch.arange(n * n, device=device).reshape(n, n) % 3 - 1).to(kind)
    eye = torch.eye(n, device=device, dtype=kind)
    right = bool(torch.equal(left @ eye, left)) and bool(torch.equal(eye @ left, left))
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(times):
            torch.mm(left, left)
        if cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return {"device": name, "flops": 2 * n**3 * times / best, "right": right}


def quick_enough(world: World, times: dict[str, float]) -> bool:
    """Whether the next size, some times larger, is worth the wait; rank 0 decides for all."""
    key = f"next/{len(times)}"
    if world.rank == 0:
        world.store.set(key, "yes" if max(times.values(), default=0.0) < WORTH_IT else "no")
    return world.store.get(key) == b"yes"


def measure_collectives(world: World) -> dict[str, Any]:
    """A process group as a job makes it, and an all_reduce of some sizes, each checked."""
    cuda = torch.cuda.is_available()
    log = os.path.join(tempfile.gettempdir(), f"muster-nccl-{os.getpid()}")
    if cuda:
        os.environ.setdefault("NCCL_DEBUG", "INFO")
        os.environ.setdefault("NCCL_DEBUG_FILE", log)
    store = dist.PrefixStore("group", world.store)
    dist.init_process_group(
        "nccl" if cuda else "gloo", store=store, rank=world.rank, world_size=world.size, timeout=timedelta(seconds=60)
    )
    times: dict[str, float] = {}
    wrong: list[int] = []
    expected = world.size * (world.size + 1) / 2
    for count in (2, 1 << 18, 1 << 22):
        if not quick_enough(world, times):
            break
        tensor = torch.full((count,), world.rank + 1.0, device="cuda" if cuda else "cpu")
        dist.all_reduce(tensor)
        if not bool(torch.all(tensor == expected)):
            wrong.append(count * 4)
        begin = time.perf_counter()
        for _ in range(3):
            dist.all_reduce(tensor)
        if cuda:
            torch.cuda.synchronize()
        times[str(count * 4)] = (time.perf_counter() - begin) / 3
    dist.destroy_process_group()
    network = ""
    if os.path.exists(log):
        with open(log, errors="replace") as file:
            lines = [line.partition("Using network ")[2].strip() for line in file if "Using network " in line]
        network = lines[0] if lines else ""
        os.unlink(log)
    return {"all_reduce": times, "wrong": wrong, "backend": "nccl" if cuda else "gloo", "network": network}


def main() -> None:
    """Measure, and tell."""
    world = World()
    result: dict[str, Any] = {"rank": world.rank, "host": world.host, "links": []}
    if world.hosts > 1:
        if world.local == 0:
            result["links"] = measure_links(world)
            bad = any("hole" in link or "problem" in link for link in result["links"])
            world.store.set(f"links/{world.host}", "bad" if bad else "good")
        states = [world.store.get(f"links/{host}") for host in range(world.hosts)]
    else:
        states = []
    world.together("devices", world.size)
    result.update(measure_device(world))
    if b"bad" not in states:  # over such a link a collective would only hang
        result.update(measure_collectives(world))
    if world.local == 0:  # this file was sent for the check alone
        shutil.rmtree(os.path.dirname(os.path.abspath(__file__)), ignore_errors=True)
    sys.stdout.write(sys.argv[1] + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

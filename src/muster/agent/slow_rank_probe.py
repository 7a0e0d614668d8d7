"""Examines suspected stragglers from outside, for about a second.

Kernel counters are compared before and after: the time that a rank was runnable without a CPU, the time that its cgroup
was throttled, and the usage of its CPUs by other processes. In between, it is sampled whether it waits for a disk.
"""

from __future__ import annotations

import os
import time

from ..shared import machine, processes
from ..shared.machine import read_text
from .host_metrics import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..shared.replies import Examined, Neighbor, RankUse
    from .gpu_metrics import Reader
    from .rank_process import Rank

_DISK_WAITS = (
    "io_schedule", "folio_wait", "wait_on_page", "blk_", "rq_qos", "throtl", "jbd2", "ext4", "xfs", "btrfs", "nfs",
    "rpc_wait", "fuse", "request_wait_answer", "ceph", "cl_sync", "gpfs", "filemap", "do_read_cache",
)  # fmt: skip
"""Prefixes of kernel functions in which a process waits for a file, on a disk or over a network."""

_MOST_CHILDREN = 16
"""Maximum number of examined children per rank, such as data loader workers."""

_QUEUES_EVERY = 5
"""Number of samples between two readings of the socket queues, which take milliseconds with thousands of sockets."""

_BUSY = 0.25
"""Minimum number of CPUs that another process must use to be reported."""


NOTHING: Examined = {"ranks": {}, "queues": {}, "gpus": []}
"""The reply if nothing could be determined."""


class Examination:
    """One examination for a request of the controller; `step` is called about every 20 ms."""

    def __init__(
        self,
        send: Callable[[Mapping[str, object]], None],
        request: int,
        ranks: Iterable[Rank],
        seconds: float,
        gpus: Reader | None = None,
    ) -> None:
        self.send = send
        self.request = request
        self.is_over = False
        self.gpus = gpus
        if gpus is not None:
            gpus.hurry()
        self._begin = time.monotonic()
        self._end = self._begin + seconds
        by_parent = processes.children()
        self._job = {os.getpid(), *processes.below(os.getpid(), by_parent)}
        self._processes = _cpu_of_all()
        self._queues = _Queues()
        self._ranks = {
            rank.number: _Examined(rank.pid, processes.below(rank.pid, by_parent)[:_MOST_CHILDREN])
            for rank in ranks
            if rank.pid and not rank.exited
        }

    def step(self) -> None:
        """Take a sample, and reply at the end."""
        for rank in self._ranks.values():
            rank.look()
        self._queues.look()
        seconds = time.monotonic() - self._begin
        if time.monotonic() < self._end or self.is_over:
            return
        others = self._others(seconds)
        ranks = {str(number): rank.result(seconds, others) for number, rank in self._ranks.items()}
        gpus = self.gpus.gpus if self.gpus is not None else []
        self.is_over = True
        seen: Examined = {"ranks": ranks, "queues": self._queues.result(), "gpus": gpus}
        self.send({"re": self.request, **seen})

    def give_up(self) -> None:
        """Reply without results."""
        self.is_over = True
        self.send({"re": self.request, **NOTHING})

    def _others(self, seconds: float) -> list[Neighbor]:
        """Busy processes outside this job, with the CPU that each last ran on."""
        found: list[Neighbor] = []
        for pid, (used, cpu, name) in _cpu_of_all().items():
            share = (used - self._processes.get(pid, (used, 0, ""))[0]) / seconds
            if share >= _BUSY and pid not in self._job:
                found.append({"pid": pid, "name": name, "cpu": round(share, 2), "on": cpu})
        return sorted(found, key=lambda other: -other["cpu"])


class _Queues:
    """Bytes queued for sending, by destination address."""

    def __init__(self) -> None:
        self._calls = 0
        self._looks = 0
        self._queued: dict[str, int] = {}

    def look(self) -> None:
        """Add the currently queued bytes, at the first call (a busy host may allow no more) and then every few."""
        self._calls += 1
        if (self._calls - 1) % _QUEUES_EVERY:
            return
        self._looks += 1
        for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
            for line in read_text(table).splitlines()[1:]:
                _, _, remote, state, queues, *_ = line.split(None, 5)
                queued = int(queues.partition(":")[0], 16)
                if state == "01" and queued:
                    address = _address(remote.partition(":")[0])
                    self._queued[address] = self._queued.get(address, 0) + queued

    def result(self) -> dict[str, int]:
        """Average number of queued bytes."""
        return {address: queued // max(1, self._looks) for address, queued in self._queued.items()}


def _address(digits: str) -> str:
    """Decode an address from /proc/net/tcp: four-byte words in native byte order."""
    import socket
    import struct
    import sys

    words = [int(digits[place : place + 8], 16) for place in range(0, len(digits), 8)]
    packed = struct.pack(f"{'<' if sys.byteorder == 'little' else '>'}{len(words)}I", *words)
    if len(packed) == 16 and packed.startswith(b"\0" * 10 + b"\xff\xff"):
        packed = packed[12:]  # IPv4-mapped
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


class _Examined:
    """One rank and its children."""

    def __init__(self, pid: int, children: list[int]) -> None:
        self.family = [pid, *children]
        self.looks = 0
        self.in_disk = 0
        self.group = _tightest_group(pid)
        self._before = self._counters()

    def look(self) -> None:
        """Sample whether the rank or one of its children waits for a disk."""
        self.looks += 1
        self.in_disk += any(_waits_for_disk(pid) for pid in self.family)

    def _counters(self) -> dict[str, float]:
        states = [state for state in map(process, self.family) if state is not None]
        throttled, periods = _throttled(self.group[0]) if self.group else (0.0, 0)
        return {
            "cpu": sum(state["cpu_seconds"] for state in states),
            "read": sum(state["read_bytes"] for state in states),
            "cpu_wait": max(map(_waited_for_cpu, self.family)),
            "throttled": throttled,
            "periods": periods,
        }

    def result(self, seconds: float, others: list[Neighbor]) -> RankUse:
        """Shares of the examined time, and rates."""
        after = self._counters()
        rate = {name: max(0.0, after[name] - value) / seconds for name, value in self._before.items()}
        try:
            cpus = os.sched_getaffinity(self.family[0])
        except OSError:
            cpus = set[int]()
        neighbor = next((other for other in others if other["on"] in cpus), None)
        return {
            "cpu": round(rate["cpu"], 3),
            "cpu_wait": round(rate["cpu_wait"], 3),
            "cpus": len(cpus),
            "disk": round(self.in_disk / max(1, self.looks), 3),
            "read": round(rate["read"]),
            "throttled": round(rate["throttled"], 3),
            "throttles": round(rate["periods"], 2),
            "quota": self.group[1] if self.group else None,
            "neighbor": neighbor,
        }


def _cpu_of_all() -> dict[int, tuple[float, int, str]]:
    """For every process: its CPU seconds, the CPU that it last ran on, and its name."""
    tick = os.sysconf("SC_CLK_TCK")
    found: dict[int, tuple[float, int, str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        name, fields = processes.stat(pid)
        if fields:
            used = (int(fields[11]) + int(fields[12])) / tick
            found[int(pid)] = used, int(fields[36]), name.decode(errors="replace")
    return found


def _waits_for_disk(pid: int) -> bool:
    state = processes.stat(pid)[1][:1]
    if state not in ([b"D"], [b"S"]):
        return False
    waits_in = read_text(f"/proc/{pid}/wchan")
    return waits_in.startswith(_DISK_WAITS) or (state == [b"D"] and waits_in in ("", "0"))


def _waited_for_cpu(pid: int) -> float:
    """Seconds in which the main thread was runnable but had no CPU."""
    fields = read_text(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def _tightest_group(pid: int) -> tuple[str, float] | None:
    """The cgroup with the lowest CPU quota for a process: its directory and number of CPUs; None without a quota."""
    quotas = [(folder, machine.cpu_quota(folder)) for folder in machine.control_groups("cpu", f"/proc/{pid}")]
    limits = [(folder, quota) for folder, quota in quotas if quota is not None]
    return min(limits, key=lambda limit: limit[1], default=None)


def _throttled(folder: str) -> tuple[float, int]:
    """Seconds for which a cgroup was throttled, and in how many periods."""
    counters = dict(line.split() for line in read_text(f"{folder}/cpu.stat").splitlines())
    seconds = int(counters.get("throttled_usec", 0)) / 1e6 + int(counters.get("throttled_time", 0)) / 1e9
    return seconds, int(counters.get("nr_throttled", 0))

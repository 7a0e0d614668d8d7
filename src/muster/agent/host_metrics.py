"""Reports the resource usage of this host and its ranks every two seconds, from /proc and gpu_metrics.py."""

from __future__ import annotations

import os
import time

from ..shared import machine, processes
from . import gpu_metrics

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypedDict

    from ..shared.events import HostGauges, RankGauges
    from ..shared.light_selectors import Selector
    from .guard import Guard
    from .rank_process import Rank

    class ProcessUse(TypedDict):
        """The resource usage of one process."""

        state: str
        cpu_seconds: float
        memory: int
        read_bytes: int
        write_bytes: int


EVERY = 2.0
"""Seconds between two messages."""

_LOOK_FOR_CHILDREN = 6.0
"""Minimum number of seconds between two scans of all processes; a scan of 500 processes takes 6 ms."""

_SHARE = 0.0005
"""Maximum share of one CPU for these scans."""

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

_OTHER_NETWORKS = ("lo", "docker", "br-", "virbr", "veth", "cni", "flannel", "cali")
"""Prefixes of interfaces whose traffic stays on the host or is also counted on another interface."""


class Gauges:
    """Measures and reports resource usage; `step` is called in every turn of the agent's loop."""

    def __init__(
        self,
        selector: Selector,
        send: Callable[[Mapping[str, object]], None],
        speaks_for_host: bool,
        guard: Guard,
    ) -> None:
        self.send = send
        self.guard = guard
        self.host = Host() if speaks_for_host else None
        """None if another agent reports for the host: under MPI there is one agent per rank."""
        self.gpus = gpu_metrics.Reader(selector) if speaks_for_host and gpu_metrics.are_here() else None
        self.due = 0.0
        self._before: dict[int, tuple[float, float]] = {}
        """For each rank, the time of its last measurement and its CPU seconds then."""
        self._children: dict[int, list[int]] = {}
        self._look_at = 0.0

    def step(self, ranks: Iterable[Rank]) -> None:
        """Send a report if it is due and some rank is running."""
        now = time.monotonic()
        if now < self.due:
            return
        running = [rank for rank in ranks if rank.pid and not rank.exited]
        if not running:
            return
        self.due = now + EVERY
        if self.gpus is not None:
            try:
                self.gpus.step()
            except OSError as error:  # the limit of processes or descriptors is reached
                self.guard.failed("the state of its GPUs", error)
        if now >= self._look_at:
            self._children = processes.children()
            self._look_at = now + max(_LOOK_FOR_CHILDREN, (time.monotonic() - now) / _SHARE)
        usage = {str(rank.number): self._of_rank(rank, now) for rank in running}
        host = self._of_host(now)
        if self.gpus is not None:
            host["gpus"] = self.gpus.gpus
        self.send({"t": "gauges", "time": time.time(), "host": host, "ranks": usage})

    def end(self) -> None:
        """End the child process that reads the GPUs."""
        if self.gpus is not None:
            self.gpus.end()

    def _of_host(self, now: float) -> HostGauges:
        try:
            return {} if self.host is None else self.host.read(now)
        except Exception as error:  # a container may hide /proc/stat or /proc/meminfo
            self.guard.failed("the resource usage of the host", error)
            return {}

    def _of_rank(self, rank: Rank, now: float) -> RankGauges:
        family = [rank.pid, *processes.below(rank.pid, self._children)]
        states = [state for state in map(process, family) if state is not None]
        seconds = sum(state["cpu_seconds"] for state in states)
        then, used = self._before.get(rank.number, (now, seconds))
        self._before[rank.number] = (now, seconds)
        # The CPU time of an exited child is missing until the rank has waited for it.
        cpu = max(0.0, seconds - used) / (now - then) if now > then else None
        gpu_memory = self.gpus.memory if self.gpus is not None else {}
        return {
            "pid": rank.pid,
            "state": states[0]["state"] if states else "X",
            "cpu": None if cpu is None else round(cpu, 3),
            "cpu_seconds": round(seconds, 2),
            "memory": sum(state["memory"] for state in states),
            "gpu_memory": sum(gpu_memory.get(pid, 0) for pid in family) if gpu_memory else None,
            "read_bytes": sum(state["read_bytes"] for state in states),
            "write_bytes": sum(state["write_bytes"] for state in states),
        }


class Host:
    """The resource usage of the whole host; rates are relative to the last reading."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._infiniband = _infiniband_counters()

    def read(self, now: float) -> HostGauges:
        """The available fields of HostState; the first reading has no rates."""
        busy, idle = _cpu_ticks()
        received, sent = _network_bytes(self._infiniband)
        counters = {"busy": busy, "idle": idle, "in": received, "out": sent, "time": now}
        waited = _io_pressure()
        if waited is not None:
            counters["disk"] = waited
        before, self._before = self._before, counters
        usage: HostGauges = {"load": os.getloadavg()[0]}
        usage["memory_used"], usage["memory_total"] = _memory()
        past = {name: counters[name] - before[name] for name in counters if name in before}
        seconds = past.get("time", 0.0)
        if seconds > 0:
            usage["cpu_use"] = round(past["busy"] / max(1.0, past["busy"] + past["idle"]), 3)
            usage["network_in"] = round(max(0.0, past["in"]) / seconds)
            usage["network_out"] = round(max(0.0, past["out"]) / seconds)
            if "disk" in past:
                usage["disk_wait"] = round(min(1.0, past["disk"] / seconds), 3)
        return usage


def process(pid: int) -> ProcessUse | None:
    """State, CPU time, memory and disk bytes of one process; None if it is gone."""
    fields = processes.stat(pid)[1]
    if not fields:
        return None
    io = f"/proc/{pid}/io"  # not readable for processes of other users
    return {
        "state": fields[0].decode(),
        "cpu_seconds": sum(map(int, fields[11:15])) / _TICK,
        "memory": int(fields[21]) * _PAGE,
        "read_bytes": machine.counted(io, "read_bytes:") or 0,
        "write_bytes": machine.counted(io, "write_bytes:") or 0,
    }


def _cpu_ticks() -> tuple[int, int]:
    """Ticks in which the host's CPUs were busy, and in which they were idle or waited for a disk."""
    with open("/proc/stat", "rb") as file:
        user, nice, system, idle, waited, *others = map(int, file.readline().split()[1:9])
    return user + nice + system + sum(others), idle + waited


def _memory() -> tuple[int, int]:
    with open("/proc/meminfo", "rb") as file:
        lines = dict(line.split(b":") for line in file.read(256).splitlines() if line.endswith(b"kB"))
    total = int(lines[b"MemTotal"].split()[0]) << 10
    return total - (int(lines[b"MemAvailable"].split()[0]) << 10), total


def _io_pressure() -> float | None:
    """Seconds since boot in which some task waited for a disk; None if the kernel does not count them."""
    some = machine.read_text("/proc/pressure/io").partition("\n")[0].rpartition("total=")[2]
    return int(some) / 1e6 if some else None


def _network_bytes(infiniband: Iterable[tuple[str, str]]) -> tuple[int, int]:
    """Bytes received and sent over the external network interfaces and InfiniBand."""
    received = sent = 0
    with open("/proc/self/net/dev", encoding="utf-8", errors="replace") as file:
        for line in file.readlines()[2:]:
            name, _, numbers = line.partition(":")
            if not name.strip().startswith(_OTHER_NETWORKS):
                fields = numbers.split()
                received += int(fields[0])
                sent += int(fields[8])
    for came, went in infiniband:
        try:
            with open(came) as file:
                received += int(file.read()) * 4  # counted in 4-byte words, as the standard requires
            with open(went) as file:
                sent += int(file.read()) * 4
        except (OSError, ValueError):
            continue
    return received, sent


def _infiniband_counters() -> list[tuple[str, str]]:
    root = "/sys/class/infiniband"
    found: list[tuple[str, str]] = []
    try:
        for card in os.listdir(root):
            for port in os.listdir(f"{root}/{card}/ports"):
                counters = f"{root}/{card}/ports/{port}/counters"
                found.append((f"{counters}/port_rcv_data", f"{counters}/port_xmit_data"))
    except OSError:
        pass
    return found

"""Overhead of monitoring for a rank: a DDP loop of small steps, alternately with and without the monitoring thread.

    muster run --nproc 2 --env MUSTER_WATCH=0 -m benchmarks.watch_cost
    muster run --nproc 2 --env MUSTER_WATCH=0 -m benchmarks.watch_cost --rounds 60 --steps 300

The ranks are started without monitoring; the benchmark itself starts and ends the monitoring thread, with its hook on
optimizers, between rounds. Prints the median time and CPU time per step, the median ratio of adjacent rounds (at most
1.005), and the memory of the thread. On a shared machine, use the ratio of the CPU times.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from importlib import import_module
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Voice:
    """The connection of the monitoring thread: the rank's own socket, until the thread is to end."""

    def __init__(self, report: Any, fd: int) -> None:
        self.reporter = report.Reporter(fd)
        self.is_whole = True
        self.fd = fd
        self.reported = 0
        self.thread = 0

    def send(self, message: dict[str, Any]) -> None:
        self.thread = message.get("thread", self.thread)
        self.reporter.send(message)

    def progress(self, done: int, **more: Any) -> None:
        self.reported = max(self.reported, done)
        self.reporter.progress(done, **more)

    def guard(self, hook: Callable[[], None]) -> None:
        self.reporter.guard(hook)

    def unwatched(self, why: str) -> None:
        self.reporter.unwatched(why)


class Watch:
    """The monitoring thread of this rank, which can be started and ended."""

    def __init__(self) -> None:
        package = "_muster_agent" if "_muster_agent" in sys.modules else "muster"
        names = ("reporter", "sampler")
        self.report, self.sampling = (import_module(f"{package}.rank.{name}") for name in names)
        self.fd = self._socket()
        self.voice: Voice | None = None

    def _socket(self) -> int:
        import gc

        return next(thing for thing in gc.get_objects() if isinstance(thing, self.report.Reporter)).fd

    def begin(self) -> None:
        self.voice = Voice(self.report, self.fd)
        self.sampling.Sampler(self.voice).start()

    def end(self) -> float:
        """End it, and return the seconds of CPU that the thread has used."""
        assert self.voice is not None
        with open(f"/proc/self/task/{self.voice.thread}/schedstat") as file:
            used = int(file.read().split()[0]) / 1e9
        self.voice.is_whole = False
        time.sleep(0.3)  # it looks five times a second
        optimizers = vars(import_module("torch.optim.optimizer"))
        for kind in ("pre", "post"):
            optimizers[f"_global_optimizer_{kind}_hooks"].clear()
        return used


def main() -> None:
    """Measure and print."""
    p = argparse.ArgumentParser(prog="benchmarks.watch_cost")
    p.add_argument("--rounds", type=int, default=40, help="rounds of each kind")
    p.add_argument("--steps", type=int, default=300, help="steps per round")
    args = p.parse_args()
    torch.set_num_threads(1)
    watch = Watch()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(16, 64)

    def steps() -> tuple[float, float]:
        dist.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(args.steps):
            optimizer.zero_grad()
            model(images).square().mean().backward()
            optimizer.step()
        return (time.perf_counter() - begin) / args.steps, (time.process_time() - cpu) / args.steps

    steps()
    more = used = seconds = 0.0
    rounds: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for number in range(args.rounds):
        pair: dict[bool, tuple[float, float]] = {}
        for watched in (True, False) if number % 2 else (False, True):
            before = memory()
            if watched:
                watch.begin()
            pair[watched] = steps()
            if watched:
                more = more or memory() - before  # only the first time: later ones reuse its memory
                used += watch.end()
                seconds += pair[True][0] * args.steps
        rounds.append((pair[True], pair[False]))
    if dist.get_rank() == 0:
        tell(rounds)
        print(f"monitoring thread: {used / seconds:.2%} of a CPU, {more:+.1f} MB")
    dist.destroy_process_group()


def tell(rounds: list[tuple[tuple[float, float], tuple[float, float]]]) -> None:
    """Print the medians and their spread."""
    for kind, name in enumerate(("time", "CPU time")):
        on, off = ([pair[which][kind] for pair in rounds] for which in (0, 1))
        ratios = sorted(with_it / without for with_it, without in zip(on, off, strict=True))
        low, high = quantiles(ratios, n=4)[0], quantiles(ratios, n=4)[2]
        print(
            f"{name} per step: {median(on) * 1e6:.0f} us with monitoring, {median(off) * 1e6:.0f} us without; "
            f"ratio {median(ratios):.4f} (half of the rounds {low:.4f} to {high:.4f}); fastest rounds "
            f"{min(on) / min(off):.4f}"
        )


def memory() -> float:
    """Megabytes of this process."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()

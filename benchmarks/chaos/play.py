"""Plays one round: starts the jobs, injects the faults, and records what is seen."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.chaos.judge import give_up_at
from benchmarks.chaos.observation import Observation, Struck
from benchmarks.chaos.plan import Fault, Plan
from benchmarks.chaos.scene import POLL, Running, Scene
from benchmarks.chaos.warm_host import parent
from benchmarks.experiment import Failed
from benchmarks.recovery.faults import FILL_ATTEMPTS
from muster.errors import LabError
from muster.lab import Lab

LOOK = 0.4
"""Seconds between two looks at all processes, which are expensive."""
SLOW_RATE = "2mbit"
LOSS_PERCENT = 30
MEMORY = "160m"
"""What all processes of a host together may use under memory pressure; a hungry rank needs more."""
NOTHING = ()


class Handles:
    """The processes of a job, held by descriptors so that no other process is ever signaled."""

    def __init__(self, scene: Scene, plan: Plan, job: Running, stack: ExitStack) -> None:
        self.scene, self.plan, self.job, self.stack = scene, plan, job, stack
        self.controller = scene.controller_pid(job, plan)
        self.found: dict[tuple[str, int], int] = {("controller", -1): self._open(self.controller)}
        for rank, pid in NOTHING if plan.early else job.rank_pids(plan.world).items():
            zygote = parent(pid)
            self.found["rank", rank] = self._open(pid)
            self.found["zygote", plan.host_of(rank)] = self._open(zygote)
            self.found["agent", plan.host_of(rank)] = self._open(parent(zygote))

    def _open(self, pid: int) -> int:
        handle = os.pidfd_open(pid)
        self.stack.callback(os.close, handle)
        return handle

    def target(self, fault: Fault) -> int:
        """The process that a fault hits; LookupError if there is none any more."""
        host = self.plan.host_name(fault.place)
        if fault.target == "ssh":
            return self._open(self.scene.child_pid(self.controller, "ssh", host))
        if fault.target in ("srun", "mpirun"):
            return self._open(self.scene.child_pid(self.controller, fault.target))
        if fault.target == "slurmd":
            return self._open(self.scene.service_pid(host, "slurmd"))
        return self.found[fault.target, fault.rank if fault.target == "rank" else fault.place]


def play(scene: Scene, plan: Plan) -> tuple[Observation, list[Running]]:
    """One round; the jobs keep their files until the caller removes them."""
    with ExitStack() as stack:
        second = scene.start(plan, second=True) if plan.second else None
        if second and not second.wait_for_ranks(max(1, len(plan.second_places()))):
            raise Failed(f"the other job did not start: {second.output[-500:]}")
        spared = scene.pids() if second else set[int]()
        job = scene.start(plan)
        struck = strike_all(scene, plan, job, stack)
        job.stop()
        code = job.wait(give_up_at(struck, time.time()))
        ended = time.time()
        gone = wait_until_gone(scene, spared, give_up_at(struck, ended))
        left = scene.left(spared) if gone is None else []
        verdict, logged, unreadable = scene.read_job(job, plan.world)
        trouble = end_second(second, plan) if second else ""
        hosts = sorted({plan.host_name(place) for place in (-1, *range(plan.hosts))})
        dirty = [
            f"{host}: {name}"
            for host, names in scene.files(hosts).items()
            for name in sorted(names - scene.clean[host])
        ]
        seen = Observation(
            code=code,
            ended=ended,
            struck=struck,
            said=tuple(job.said(rank) for rank in range(plan.world)),
            finished=tuple(job.has_finished(rank) for rank in range(plan.world)),
            logged=logged,
            gone=gone,
            left=tuple(left),
            verdict=verdict,
            unreadable=unreadable,
            second=trouble,
            dirty=tuple(dirty),
            output="".join(line for line in job.output.splitlines(keepends=True) if "] line " not in line),
        )
        broken = [plan.host_name(fault.place) for fault in plan.faults if fault.target in ("host", "slurmd")]
        scene.restore(broken)
        return seen, [job, *([second] if second else [])]


def strike_all(scene: Scene, plan: Plan, job: Running, stack: ExitStack) -> tuple[Struck | None, ...]:
    """Inject every fault at its time, and undo those that do not last."""
    struck: list[Struck | None] = [None] * len(plan.faults)
    if not plan.early and not job.wait_for_ranks(plan.world):
        return tuple(struck)
    try:
        handles = Handles(scene, plan, job, stack)
    except (LookupError, OSError):  # it has ended meanwhile
        return tuple(struck)
    begin = time.time()
    undo: dict[int, Callable[[], None]] = {}
    events = [(fault.at, index, True) for index, fault in enumerate(plan.faults)]
    events += [(fault.at + fault.lasts, index, False) for index, fault in enumerate(plan.faults) if fault.lasts]
    for at, index, first in sorted(events):
        if first and job.wait(begin + at) is not None:
            continue
        time.sleep(max(0.0, begin + at - time.time()))
        if first:
            moment = time.time()
            try:
                undo[index] = strike(plan.faults[index], handles)
                struck[index] = Struck(begin=moment, done=time.time())
            except (LookupError, OSError):
                pass
        elif one := struck[index]:
            undo[index]()
            struck[index] = replace(one, end=time.time())
    return tuple(struck)


def strike(fault: Fault, handles: Handles) -> Callable[[], None]:
    """Inject one fault; return what undoes it."""
    if fault.target == "host":
        return strike_host(fault, handles)
    handle = handles.target(fault)
    if fault.kind == "kill":
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return lambda: None
    signal.pidfd_send_signal(handle, signal.SIGSTOP)

    def wake() -> None:
        try:
            signal.pidfd_send_signal(handle, signal.SIGCONT)
        except ProcessLookupError:
            pass

    return wake


def strike_host(fault: Fault, handles: Handles) -> Callable[[], None]:
    """Inject a fault of a whole host; return what undoes it."""
    lab, host = handles.scene.lab, handles.plan.host_name(fault.place)
    strikes: dict[str, Callable[[], None]] = {
        "cut": lambda: lab.cut(host),
        "slow": lambda: lab.slow(host, rate=SLOW_RATE),
        "loss": lambda: lab.loss(host, LOSS_PERCENT),
        "power": lambda: lab.power_off(host),
        "freeze": lambda: lab.freeze(host),
        "disk": lambda: _fill_disk(lab, host),
        "memory": lambda: lab.limit_memory(host, MEMORY),
    }
    try:
        strikes[fault.kind]()
    except LabError as error:
        raise LookupError(error.message) from error
    return lambda: lab.thaw(host) if fault.kind == "freeze" else lab.heal(host)


def _fill_disk(lab: Lab, host: str) -> None:
    """Fill the disk of a host while ranks write to it, which may need several attempts."""
    for _ in range(FILL_ATTEMPTS - 1):
        try:
            return lab.fill_disk(host)
        except LabError:
            pass
    return lab.fill_disk(host)


def wait_until_gone(scene: Scene, spared: set[int], until: float) -> float | None:
    """When no process of the job was left; None if some are left at the end of the limit."""
    while scene.left(spared):
        if time.time() > until:
            return None
        time.sleep(LOOK)
    return time.time()


def end_second(second: Running, plan: Plan) -> str:
    """End the other job; return what is wrong with it."""
    world = max(1, len(plan.second_places()))
    before = [len(second.said(rank)) for rank in range(world)]
    deadline = time.time() + 20
    while any(len(second.said(rank)) <= before[rank] for rank in range(world)):
        if second.code is not None:
            return f"it ended with {second.code}: {second.output[-500:]}"
        if time.time() > deadline:
            return "it makes no progress"
        time.sleep(POLL)
    second.stop()
    code = second.wait(time.time() + 30)
    if code != 0:
        return f"it ended with {code}: {second.output[-500:]}"
    return "it reported a lost host" if " is lost" in second.output else ""

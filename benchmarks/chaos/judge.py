"""Judges one round: a pure function of the plan and of what was seen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from benchmarks.chaos.observation import Observation, Struck, Verdict
from benchmarks.chaos.plan import GRACE, LEASE, Fault, Plan

BUSY = 3.0
"""Seconds by which anything may be late on a busy machine."""
IN_FLIGHT = 3.0
"""Seconds of output that may be lost with the agent or the controller."""
FIND_OUT = 6.0
"""Seconds after which an agent whose ssh has ended gives its controller up."""
LAST_GRACE = 3.0
"""Seconds of grace for ranks whose controller is lost."""
MAYBE = LEASE / 2
"""Seconds of an outage above which a host may be lost: a busy machine adds delays, and ends outages late."""
LATE = 10.0
"""Seconds after the promised time until a process counts as left behind, because the machine is busy."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One thing that ends the job, with the verdict it must get."""

    codes: frozenset[int]
    begin: float
    """The earliest moment at which it can end the job."""
    end: float
    """The latest moment; infinity if it may come too late for the job."""
    rank: int | None = None
    host: int | None = None
    can_be_outrun: bool = False
    """Whether ranks that end before `end` succeed: those that it ends keep running for a moment."""
    verdict: bool = True
    """Whether the controller is there to give a verdict."""


def judge(plan: Plan, seen: Observation) -> list[str]:
    """What is wrong with a round, one sentence each."""
    return [*_ends(plan, seen), *_processes(seen), *_logs(plan, seen), *_surroundings(seen)]


def give_up_at(struck: tuple[Struck | None, ...], now: float) -> float:
    """How long to wait for `muster run` and for its processes, seen from now."""
    last = max((one.end or one.begin for one in struck if one), default=now)
    return max(now, last) + LEASE + FIND_OUT + LAST_GRACE + GRACE + LATE


def causes(plan: Plan, seen: Observation) -> list[Cause]:
    """Everything in this round that ends a job."""
    found = [
        cause
        for fault, struck in zip(plan.faults, seen.struck, strict=True)
        if struck and (cause := _cause(plan, seen, fault, struck))
    ]
    if plan.failure:
        rank, line = plan.failure
        if len(seen.said[rank]) >= line:
            begin = seen.said[rank][line - 1]
            found.append(Cause(codes=frozenset({1}), begin=begin, end=_noticed(plan, seen, begin), rank=rank))
    return found


def _cause(plan: Plan, seen: Observation, fault: Fault, struck: Struck) -> Cause | None:
    """How a fault ends the job; None if the job must survive it."""
    begin = struck.begin
    lasts = (struck.end or inf) - begin
    noticed = _noticed(plan, seen, max(begin, struck.done))
    lost = Cause(codes=frozenset({125}), begin=begin + LEASE / 2, end=noticed + LEASE, host=fault.place)
    if MAYBE < lasts < LEASE * 1.2:
        lost = replace(lost, end=inf)
    match fault.kind, fault.target:
        case "kill", "controller":
            return Cause(codes=frozenset({137}), begin=begin, end=begin, verdict=False)
        case "kill", "rank":
            return Cause(codes=frozenset({137}), begin=begin, end=noticed, rank=fault.rank)
        case "kill", "zygote":
            return Cause(codes=frozenset({125}), begin=begin, end=noticed, host=fault.place)
        case "kill", "agent":
            return replace(lost, begin=begin)
        case "kill", "srun":  # Slurm ends its agents, which may take a second
            return Cause(codes=frozenset({125}), begin=begin, end=noticed + LEASE, can_be_outrun=True)
        case "kill", "mpirun":  # its daemons send SIGTERM to the ranks, as at a time limit
            return Cause(codes=frozenset({125, 143}), begin=begin, end=noticed + LEASE, can_be_outrun=True)
        case "power", _:
            return replace(lost, begin=begin)
        case "disk", _ if plan.scratch:
            return Cause(codes=frozenset({1}), begin=begin, end=noticed, host=fault.place)
        case "memory", _ if plan.hungry is not None:
            return Cause(codes=frozenset({137}), begin=begin, end=inf, rank=plan.hungry)
        case ("stop", "agent") | ("cut" | "freeze", _) if lasts > MAYBE:
            return lost
        case "stop", "controller" if lasts > MAYBE:
            return replace(lost, host=None)
        case _:
            return None


def _noticed(plan: Plan, seen: Observation, begin: float) -> float:
    """When the controller must have noticed what happened at `begin`: whoever is stopped delays it."""
    until = begin
    for fault, struck in sorted(
        ((fault, struck) for fault, struck in zip(plan.faults, seen.struck, strict=True) if struck),
        key=lambda pair: pair[1].begin,
    ):
        if fault.lasts is not None and struck.end and struck.begin <= until + BUSY:
            until = max(until, struck.end)
    return until + BUSY


def _ends(plan: Plan, seen: Observation) -> Iterator[str]:
    """The exit code and the verdict."""
    if seen.code is None:
        yield "muster run did not end"
        return
    if plan.early and any(seen.struck):
        yield from _early_end(seen)
        return
    possible = causes(plan, seen)
    first = min((cause.end for cause in possible), default=0.0)
    possible = [cause for cause in possible if cause.begin <= first]
    complete = all(seen.finished)
    last = max((said[-1] for said in seen.said if said), default=0.0)
    may_succeed = all(
        last <= (cause.end if cause.can_be_outrun else cause.begin) for cause in possible if cause.end < inf
    )
    if seen.code == 0:
        if not may_succeed:
            yield f"exit code 0, but it should be {_codes(possible)}"
        elif not complete:
            yield "exit code 0, but not every rank has finished"
        elif seen.verdict and seen.verdict.sentence:
            yield f"exit code 0, but a failure is recorded: {seen.verdict.sentence}"
        return
    matching = [cause for cause in possible if seen.code in cause.codes]
    if not matching:
        yield f"exit code {seen.code}, but it should be {_codes(possible) if possible else '0'}"
    elif all(cause.verdict for cause in matching):
        yield from _verdict(plan, seen, matching)


def _early_end(seen: Observation) -> Iterator[str]:
    """A fault while the job starts may or may not end it, but an end without success names a host, a rank or Muster."""
    if seen.code == 0 and not all(seen.finished):
        yield "exit code 0, but not every rank has finished"
    if seen.code not in (0, 1, 125, 137):
        yield f"exit code {seen.code} after a fault while the job started"


def _verdict(plan: Plan, seen: Observation, matching: list[Cause]) -> Iterator[str]:
    verdict = seen.verdict
    if verdict is None:
        return
    if verdict.exit_code != seen.code:
        yield f"exit code {seen.code}, but the job directory says {verdict.exit_code}"
    if not any(_names(plan, verdict, cause) for cause in matching):
        wanted = " or ".join(sorted({_who(plan, cause) for cause in matching}))
        yield f"the verdict should name {wanted}: {verdict.sentence or 'no verdict'}"


def _names(plan: Plan, verdict: Verdict, cause: Cause) -> bool:
    if cause.rank is not None:
        return verdict.rank == cause.rank
    words = re.split(r"[^\w]+", verdict.sentence)
    return cause.host is None or plan.host_name(cause.host) in (verdict.host, *words)


def _who(plan: Plan, cause: Cause) -> str:
    if cause.rank is not None:
        return f"rank {cause.rank}"
    return "any host" if cause.host is None else plan.host_name(cause.host)


def _codes(possible: list[Cause]) -> str:
    return " or ".join(str(code) for code in sorted({code for cause in possible for code in cause.codes}))


def _processes(seen: Observation) -> Iterator[str]:
    if seen.gone is None:
        yield f"processes are left: {'; '.join(seen.left)}"


def _logs(plan: Plan, seen: Observation) -> Iterator[str]:
    """The lines of every rank: in order, none twice, all that were printed before anything that may lose some."""
    for rank, (said, logged) in enumerate(zip(seen.said, seen.logged, strict=True)):
        if list(logged) != list(range(1, len(logged) + 1)):
            odd = next(i for i, number in enumerate(logged) if number != i + 1)
            yield f"rank {rank}: line {logged[odd]} is where line {odd + 1} should be in the log"
            continue
        safe = _safe_until(plan, seen, rank)
        must = sum(moment <= safe for moment in said)
        if len(logged) < must:
            yield f"rank {rank}: the log has {len(logged)} of {len(said)} lines; {must} were printed in time"


def _safe_until(plan: Plan, seen: Observation, rank: int) -> float:
    """All lines of a rank up to this time must be in its log."""
    near = [
        (fault, struck)
        for fault, struck in zip(plan.faults, seen.struck, strict=True)
        if struck and fault.target != "rank" and fault.place in (-1, plan.host_of(rank))
    ]
    if not any(_loses_output(fault, struck) for fault, struck in near):
        return inf
    return min(struck.begin for _, struck in near) - IN_FLIGHT


def _loses_output(fault: Fault, struck: Struck) -> bool:
    """Whether what a host has sent may be lost on the way."""
    outlived = (struck.end or inf) - struck.begin > MAYBE
    if fault.target in ("controller", "agent", "srun", "mpirun"):
        return fault.kind == "kill" or outlived
    return fault.kind == "power" or (fault.kind in ("cut", "freeze") and outlived)


def _surroundings(seen: Observation) -> Iterator[str]:
    if seen.unreadable:
        yield f"the job directory is not readable: {seen.unreadable}"
    if seen.second:
        yield f"the other job was disturbed: {seen.second}"
    if seen.dirty:
        yield f"the lab is not clean: {'; '.join(seen.dirty)}"

"""The roll call: before the process group is created, each rank sends its facts to rank 0, which answers.

This makes the ranks agree: the backend is the same on all ranks even if only some have a GPU, the local rank is
correct even if the launcher does not set it, and a rank that never joins is reported.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from muster.errors import MusterError, UsageError
from muster.rank.world.gloo import is_outward
from muster.rank.world.waiting import wait_for
from muster.text import rank_list

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


_LEAVE_LIMIT = 10.0
"""Seconds that a failed rank 0 keeps its store open, so that the other ranks can read the error."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What one rank reports about itself."""

    host: str
    machine: str
    """Distinguishes machines with the same hostname."""
    gpus: Sequence[str]
    """UUIDs of the GPUs that this process sees, by index."""
    backend: str | None
    """The requested backend; None to let the roll call choose."""
    local_rank: int | None
    local_size: int | None
    address: str = ""
    """The address of its host on the route to rank 0."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What rank 0 assigns to one rank."""

    local_rank: int
    local_size: int
    gpu: int | None
    backend: str
    backend_reason: str
    neighbor: str
    """An address of another machine of the job; empty if there is none or it is unknown."""


def call_roll(store: Store, rank: int, size: int, facts: Facts, *, limit: float, where: str) -> Place:
    """Send the facts of this rank to rank 0, and return what it assigns; `where` is rank 0's address for messages."""
    if store.add(f"arrived/{rank}", 1) > 1:
        raise UsageError(
            f"two processes claim to be rank {rank} of {size}, the second one on {facts.host}",
            hint="give each process its own RANK",
        )
    store.set(f"facts/{rank}", json.dumps(asdict(facts)))
    if rank == 0:
        _answer_all(store, size, limit, where)
    answer = f"place/{rank}"

    def what() -> str:
        return f"rank {rank} on {facts.host} has reached rank 0 at {where} and is waiting for the other ranks"

    # Rank 0 may have started its timeout later than this rank, so wait a little longer for its answer.
    if not wait_for(lambda: store.check([answer]), limit * 1.1 + 5, what):
        raise MusterError(f"rank 0 at {where} did not answer rank {rank} on {facts.host} within {limit:.0f} s")
    reply = json.loads(store.get(answer))
    if "error" in reply:
        with suppress(RuntimeError):  # rank 0 has left, after all
            store.set(f"read/{rank}", "")
            if rank == 0:
                _stay_until_read(store, size)
        kind = UsageError if reply["usage"] else MusterError
        raise kind(reply["error"], hint=reply["hint"])
    return Place(**reply)


def _answer_all(store: Store, size: int, limit: float, where: str) -> None:
    keys = [f"facts/{rank}" for rank in range(size)]

    def missing() -> str:
        return rank_list([rank for rank, key in enumerate(keys) if not store.check([key])])

    def what() -> str:
        return f"rank 0 is waiting at {where} for {missing()}"

    try:
        if not wait_for(lambda: store.check(keys), limit, what):
            raise MusterError(
                f"{missing()} of {size} did not reach rank 0 at {where} within {limit:.0f} s",
                hint="check the output of those ranks, and that their hosts can reach that address and port",
            )
        places = assign([Facts(**json.loads(store.get(key))) for key in keys])
    except MusterError as error:
        reply = {"error": error.message, "hint": error.hint, "usage": isinstance(error, UsageError)}
        for rank in range(size):
            store.set(f"place/{rank}", json.dumps(reply))
    else:
        for rank, place in enumerate(places):
            store.set(f"place/{rank}", json.dumps(asdict(place)))


def _stay_until_read(store: Store, size: int) -> None:
    """Wait until every rank that has arrived has read the error; on a busy host this takes a while."""

    def is_read() -> bool:
        return all(store.check([f"read/{rank}"]) for rank in range(size) if store.check([f"facts/{rank}"]))

    wait_for(is_read, _LEAVE_LIMIT, lambda: "rank 0 is waiting for the other ranks to read the error")


def assign(ranks: Sequence[Facts]) -> list[Place]:
    """Assign each rank its local rank, its GPU, and a backend that all ranks can use."""
    locals_ = _local_ranks(ranks)
    gpus = [
        local_rank % len(facts.gpus) if facts.gpus else None
        for facts, (local_rank, _) in zip(ranks, locals_, strict=True)
    ]
    backend, reason = _choose_backend(ranks, gpus)
    return [
        Place(
            local_rank=local_rank,
            local_size=local_size,
            gpu=gpu,
            backend=backend,
            backend_reason=reason,
            neighbor=neighbor,
        )
        for (local_rank, local_size), gpu, neighbor in zip(locals_, gpus, _neighbors(ranks), strict=True)
    ]


def _neighbors(ranks: Sequence[Facts]) -> list[str]:
    """For each rank, the first non-loopback address that another machine has reported."""
    known: dict[tuple[str, str], str] = {}
    for facts in ranks:
        if is_outward(facts.address):
            known.setdefault(_machine(facts), facts.address)
    two = list(known.items())[:2]  # for every rank, at least one of two machines is a different one
    return [next((address for machine, address in two if machine != _machine(facts)), "") for facts in ranks]


def _machine(facts: Facts) -> tuple[str, str]:
    return facts.host, facts.machine


def _local_ranks(ranks: Sequence[Facts]) -> list[tuple[int, int]]:
    given = [(facts.local_rank, facts.local_size) for facts in ranks]
    known = [(rank, size) for rank, size in given if rank is not None and size is not None]
    if len(known) == len(ranks):
        return known
    machines = [_machine(facts) for facts in ranks]
    return [(machines[:i].count(machine), machines.count(machine)) for i, machine in enumerate(machines)]


def _choose_backend(ranks: Sequence[Facts], gpus: Sequence[int | None]) -> tuple[str, str]:
    asked = ranks[0].backend
    for rank, facts in enumerate(ranks):
        if facts.backend != asked:
            raise UsageError(
                f"rank 0 requests backend {asked or '(any)'}, but rank {rank} requests {facts.backend or '(any)'}",
                hint="request the same backend on all ranks",
            )
    obstacle = _nccl_obstacle(ranks, gpus)
    if asked == "nccl" and obstacle:
        raise UsageError(f"backend nccl is not available: {obstacle}", hint="use backend gloo")
    if asked:
        return asked, "it was requested"
    if obstacle:
        return "gloo", obstacle
    return "nccl", "each rank has its own GPU"


def _nccl_obstacle(ranks: Sequence[Facts], gpus: Sequence[int | None]) -> str | None:
    without = [rank for rank, gpu in enumerate(gpus) if gpu is None]
    if len(without) == len(ranks):
        return "no rank has a GPU" if len(ranks) > 1 else "no GPU is visible"
    if without:
        have = "have" if len(without) > 1 else "has"
        return f"{rank_list(without)} (on {ranks[without[0]].host}) {have} no GPU"
    owners: dict[tuple[str, str, str], int] = {}
    for rank, (facts, gpu) in enumerate(zip(ranks, gpus, strict=True)):
        assert gpu is not None
        owner = owners.setdefault((*_machine(facts), facts.gpus[gpu]), rank)
        if owner != rank:
            return f"ranks {owner} and {rank} share a GPU on {facts.host}"
    return None

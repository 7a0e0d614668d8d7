"""The plan of one round, a pure function of its seed: the job, and the faults that hit it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

Engine = Literal["local", "ssh", "slurm", "mpi", "container"]
Kind = Literal["kill", "stop", "cut", "slow", "loss", "power", "freeze", "disk", "memory"]
Target = Literal["controller", "agent", "zygote", "rank", "ssh", "srun", "slurmd", "mpirun", "host"]

LEASE = 8.0
"""`--lost-after` of every job, in seconds; on a busy machine, messages are late by seconds."""
GRACE = 1.0
"""`--grace` of every job, in seconds."""
SHORT = (0.2, 1.5)
"""Seconds of an outage that a job must survive: far below the lease, because the machine is busy."""
LONG = (11.0, 12.0)
"""Seconds of an outage that a job cannot survive."""
PACE = 0.05
"""Seconds between two lines of a rank."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of a round."""

    kind: Kind
    target: Target
    place: int
    """Position of the host it hits; the controller's is -1."""
    rank: int
    """The rank it hits, if it hits one."""
    at: float
    """Seconds from the first line of all ranks, or from the start of an `early` round, to the fault."""
    lasts: float | None
    """Seconds until it is undone; None: not in this round."""

    def __str__(self) -> str:
        who = {"rank": f" rank {self.rank}", "host": ""}.get(self.target, f" {self.target}")
        where = "" if self.place < 0 or self.target == "rank" else f" on host {self.place}"
        until = "" if self.lasts is None else f" for {self.lasts:.1f} s"
        return f"{self.kind}{who}{where} at {self.at:.1f} s{until}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One round."""

    seed: int
    engine: Engine
    hosts: int
    ranks: int
    """Per host."""
    zygote: bool
    torch: bool
    lines: int
    """How many lines each rank prints after the last fault."""
    children: bool
    """Whether each rank has a child in a session of its own, and a daemon."""
    scratch: bool
    """Whether each rank writes to the disk of its host."""
    hungry: int | None
    """The rank that needs more and more memory."""
    failure: tuple[int, int] | None
    """The rank that raises an exception, and after which line."""
    second: bool
    """Whether another job runs on the same hosts."""
    early: bool
    """Whether the faults hit while the job starts."""
    faults: tuple[Fault, ...]

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.hosts * self.ranks

    def host_of(self, rank: int) -> int:
        """The position of the host of a rank."""
        return rank // self.ranks

    def host_name(self, place: int) -> str:
        """The name of a host in the lab, whose first host runs the controller."""
        return "h1" if self.engine == "local" or place < 0 else f"h{place + 2}"

    def second_places(self) -> tuple[int, ...]:
        """The hosts of the other job: those that no fault hits as a whole."""
        hit = {fault.place for fault in self.faults if fault.target in ("host", "slurmd")}
        return () if self.engine == "local" else tuple(place for place in range(self.hosts) if place not in hit)

    def __str__(self) -> str:
        how = [f"{self.engine}, {self.hosts} x {self.ranks} ranks", "zygote" if self.zygote else "no zygote"]
        how += [name for name in ("torch", "children", "scratch", "early") if getattr(self, name)]
        how += ["second job"] if self.second else []
        how += [f"rank {self.failure[0]} raises after line {self.failure[1]}"] if self.failure else []
        how += [] if self.hungry is None else [f"rank {self.hungry} is hungry"]
        return "; ".join([", ".join(how), *(str(fault) for fault in self.faults)])


TARGETS: dict[Engine, tuple[Target, ...]] = {
    "local": ("controller", "agent", "zygote", "rank"),
    "ssh": ("controller", "agent", "zygote", "rank", "ssh", "host", "host", "host"),
    "slurm": ("controller", "agent", "zygote", "rank", "srun", "slurmd", "host"),
    "mpi": ("controller", "agent", "rank", "mpirun"),
    "container": ("controller", "agent", "zygote", "rank", "host"),
}
OF_HOSTS: dict[Engine, tuple[Kind, ...]] = {
    "ssh": ("cut", "cut", "slow", "loss", "power", "freeze", "disk", "memory"),
    "slurm": ("cut", "power", "freeze"),
    "container": ("cut", "slow", "loss", "power", "freeze"),
}
EARLY: dict[Engine, tuple[Target, ...]] = {"local": ("controller",), "ssh": ("controller", "ssh", "host")}
EARLY_OF_HOSTS: tuple[Kind, ...] = ("cut", "power", "freeze", "slow")


def plan_of(seed: int) -> Plan:
    """The round of this seed."""
    chance = Random(seed)
    engine: Engine = chance.choices(("local", "ssh", "slurm", "mpi", "container"), (25, 50, 9, 8, 8))[0]
    hosts = 1 if engine == "local" else chance.randint(1, 3)
    ranks = chance.randint(1, 3 if engine in ("local", "ssh") else 2)
    lines = chance.randint(5, 40)
    early = engine in EARLY and chance.random() < 0.12
    zygote = chance.random() < 0.04 and engine in ("local", "ssh")
    plan = Plan(
        seed=seed,
        engine=engine,
        hosts=1 if zygote else hosts,
        ranks=ranks,
        zygote=zygote,
        torch=zygote and chance.random() < 0.5,
        lines=lines,
        children=chance.random() < 0.3,
        scratch=False,
        hungry=None,
        failure=None,
        second=chance.random() < 0.12,
        early=early,
        faults=(),
    )
    if chance.random() < 0.12:
        plan = replace(plan, failure=(chance.randrange(plan.world), chance.randint(5, 60)))
    faults: list[Fault] = []
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3))):
        fault = _fault(chance, plan)
        if not any(_clash(fault, other) for other in faults):
            faults.append(fault)
    filled, hungry = [[f.rank for f in faults if f.kind == kind] for kind in ("disk", "memory")]
    return replace(
        plan,
        scratch=bool(filled) and chance.random() < 0.7,
        hungry=hungry[0] if hungry and chance.random() < 0.7 else None,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def _fault(chance: Random, plan: Plan) -> Fault:
    target = chance.choice((EARLY if plan.early else TARGETS)[plan.engine])
    kind: Kind = chance.choice(("kill", "stop"))
    if target == "host":
        kind = chance.choice(EARLY_OF_HOSTS if plan.early else OF_HOSTS[plan.engine])
    if target == "slurmd":
        kind = "kill"
    place = chance.randrange(plan.hosts)
    lasts: float | None = round(chance.uniform(*(SHORT if chance.random() < 0.75 else LONG)), 2)
    if kind in ("slow", "loss"):
        lasts = round(chance.uniform(*SHORT), 2)
    if kind in ("kill", "power", "disk", "memory"):
        lasts = None
    return Fault(
        kind=kind,
        target=target,
        place=-1 if target in ("controller", "srun", "mpirun") else place,
        rank=place * plan.ranks + chance.randrange(plan.ranks),
        at=round(chance.uniform(0, 1.2 if plan.early else 2), 2),
        lasts=lasts,
    )


def _clash(one: Fault, other: Fault) -> bool:
    """Whether two faults are not planned together.

    These are two of one host's hardware, two stops of one process, which do not nest, and agent and zygote killed at
    once, which Muster does not promise to survive.
    """
    if one.place != other.place:
        return False
    if one.kind == other.kind == "stop" and one.target == other.target:
        return True
    if one.target == other.target == "host":
        return True
    if "host" in (one.target, other.target) and "slurmd" in (one.target, other.target):
        return True
    both = {one.target, other.target} == {"agent", "zygote"} and one.kind == other.kind == "kill"
    return both and abs(one.at - other.at) < 1

"""Slurm: one srun for all hosts, so that Slurm accounts for the agents and scancel reaches them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

from muster.agent import dial_back
from muster.engines.allocation import Allocation
from muster.engines.container.container import Container
from muster.engines.engine import AgentSpec, Dialed, StartCommand, or_container
from muster.errors import MusterError, UsageError
from muster.plan import Plan

SCHEDULER = "Slurm"

# What was asked of the job's own tasks; srun would take it as asked of the agents, of which there is one per host.
_UNSET = tuple(
    f"SLURM_{name}"
    for name in (
        *("CPUS_PER_TASK", "CPU_BIND", "CPU_BIND_LIST", "CPU_BIND_TYPE", "CPU_BIND_VERBOSE", "DISTRIBUTION"),
        *(
            "EXCLUSIVE",
            "GPUS",
            "GPUS_PER_TASK",
            "GPU_BIND",
            "HINT",
            "LABELIO",
            "MEM_BIND",
            "MEM_PER_CPU",
            "MEM_PER_GPU",
        ),
        *("NNODES", "NPROCS", "NTASKS", "NTASKS_PER_CORE", "NTASKS_PER_GPU", "NTASKS_PER_NODE", "NTASKS_PER_SOCKET"),
        *("NTASKS_PER_TRES", "OVERCOMMIT", "TASKS_PER_NODE", "THREADS_PER_CORE", "TRES_PER_TASK", "UNBUFFEREDIO"),
        "WAIT",
    )
)

_ENDED = re.compile(r"\*\*\* (?:JOB|STEP) (\d+)\S* ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z -]+?))? \*\*\*")
_REASONS = {
    "TIME LIMIT": "its time limit is reached",
    "NODE FAILURE": "one of its hosts has failed",
    "PREEMPTION": "another job took its place",
}


def slurm_engine(
    allocation: Allocation,
    seats: Sequence[AgentSpec],
    *,
    python: str | None,
    box: Container | None,
    gpus: Mapping[str, int] | None = None,
) -> Dialed:
    """The srun that starts an agent on each of these hosts of the allocation.

    `gpus` says how many the job has on each of its hosts, where srun has to be told.
    """
    agent = (python or (sys.executable if box is None else "python3"), "-c", dial_back.COMMAND)
    command = ("--ntasks-per-node=1", *_OPTIONS, *(box.run(agent) if box else agent))
    return Dialed(
        name="slurm",
        summons=tuple(
            StartCommand(argv=_srun(allocation, some, (*share, *command)), seats=tuple(some))
            for some, share in _shares(seats, {} if allocation.groups else gpus or {})
        ),
        seat_from=("SLURMD_NODENAME",),
        explain=or_container(box, explain_srun),
        why_ended=why_ended,
        scheduler=SCHEDULER,
        rank_env=task_variables,
        unset=_UNSET,
    )


def _shares(seats: Sequence[AgentSpec], gpus: Mapping[str, int]) -> list[tuple[Sequence[AgentSpec], tuple[str, ...]]]:
    """The seats that one srun can serve, and what it says of their GPUs: no srun can ask for 2 here and 1 there."""
    if not gpus:
        return [(seats, ())]
    if len(set(gpus.values())) == 1:
        return [(seats, (f"--gres=gpu:{next(iter(gpus.values()))}",))]
    counts = [(seat, gpus.get(seat.host.name, 0)) for seat in seats]
    return [([seat], (f"--gpus={count}" if count else "--gres=none",)) for seat, count in counts]


_OPTIONS = (
    "--overlap",  # the batch script's own step holds the job's resources
    "--cpu-bind=none",  # the agent's ranks share the host's CPUs, not the one CPU of a task
    "--mpi=none",
    "--input=none",
    "--export=ALL",
    "--kill-on-bad-exit=0",  # the controller decides when one host's end is everybody's
    "--wait=0",
    "--job-name=muster",
)


def _srun(allocation: Allocation, seats: Sequence[AgentSpec], command: tuple[str, ...]) -> tuple[str, ...]:
    names = [seat.host.name for seat in seats]
    if not allocation.groups:
        return "srun", f"--nodes={len(names)}", f"--ntasks={len(names)}", f"--nodelist={','.join(names)}", *command
    if len(names) != len(allocation.hosts):
        raise UsageError(
            f"-H names {len(names)} of the {len(allocation.hosts)} hosts of a heterogeneous job, and srun takes all",
            hint="leave -H out",
        )
    # Each group with its own number of tasks: for all at once srun takes what the job was asked for, -n3 on two hosts,
    # and --ntasks-per-node=1 does not count against that.
    parts: list[str] = []
    for group in sorted(set(allocation.groups)):
        hosts = allocation.groups.count(group)
        parts += [":", f"--het-group={group}", f"--nodes={hosts}", f"--ntasks={hosts}", *command]
    return "srun", *parts[1:]


def task_variables(plan: Plan, rank: int) -> dict[str, str]:
    """What srun would have set had it started the ranks: scripts and libraries written for srun look at these.

    The agent's own, which a rank would otherwise inherit, are the same for all ranks of a host.
    """
    place = plan.placement_of(rank)
    slots = [placement.slots for placement in plan.placements]
    hosts = str(len(slots))
    world, local = str(plan.world_size), str(rank - place.first_rank)
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": local,
        "SLURM_NODEID": str(plan.placements.index(place)),
        "SLURM_NNODES": hosts,
        "SLURM_STEP_NUM_NODES": hosts,
        "SLURM_NTASKS": world,
        "SLURM_NPROCS": world,
        "SLURM_STEP_NUM_TASKS": world,
        "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, slots)),
        "SLURM_TASKS_PER_NODE": ",".join(map(str, slots)),
    }


def why_ended(line: str) -> str | None:
    """The reason Slurm gives for ending the job, if this line of srun tells one."""
    found = _ENDED.search(line)
    if found is None:
        return None
    job, due = found.groups()
    return f"Slurm ended job {job}: {_REASONS.get(due, due.lower()) if due else 'it was cancelled (scancel)'}"


def explain_srun(summons: StartCommand, code: int | None, text: str) -> MusterError:
    """What srun's words mean when its agents have not come."""
    words = [line.strip() for line in text.splitlines() if line.strip()]
    ours = next((line for line in words if line.startswith("muster: ")), None)
    if ours is not None:
        return MusterError(ours.removeprefix("muster: "), hint=_unreachable(ours))
    for pattern, hint in _SRUN_FAILURES:
        for line in words:
            if pattern.search(line):
                return MusterError(f"srun: {_bare(line)}", hint=hint)
    reason = next((why for why in map(why_ended, words) if why), None)
    if reason:
        return MusterError(reason)
    said = _bare(words[-1]) if words else f"it ended with code {code}"
    return MusterError(f"srun did not start the agents: {said}", hint=f"does `{' '.join(summons.argv[:3])} true` work?")


def _bare(line: str) -> str:
    """A line of Slurm's without who says it."""
    return re.sub(r"^(?:(?:srun|slurmstepd|slurmstepd-\S+|error|fatal):\s*)+", "", line)


def _unreachable(words: str) -> str:
    if "cannot reach" not in words:
        return "name another Python with `--python PATH`"
    return "is there a firewall between? `muster submit --slurm` runs it on one of the hosts, which the others reach"


_SRUN_FAILURES = (
    (re.compile(r"execve\(\).*: No such file|can't find .* in PATH", re.I), "name a Python with `--python PATH`"),
    (
        re.compile(r"Invalid job id|has expired|already completing|Job/step already", re.I),
        "this allocation is over: leave its shell and get a new one",
    ),
    (
        re.compile(r"Unable to contact slurm|Connection refused|Zero Bytes were transmitted", re.I),
        "is slurmctld up? try `sinfo`",
    ),
    (re.compile(r"node configuration is not available|Invalid node name|More processors requested", re.I), None),
)


def salloc_argv(slurm_args: Sequence[str], name: str, command: Sequence[str]) -> list[str]:
    """The command line that gets an allocation, runs `command` here inside it, and gives it back."""
    # What the user says comes last and wins.
    return ["salloc", f"--job-name={name}", *slurm_args, *command]

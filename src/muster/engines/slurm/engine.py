"""The Slurm engine: one srun for all hosts, so that Slurm accounts for the agents and scancel reaches them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from muster.engines.allocation import Allocation
from muster.engines.container.container import Container, container_of
from muster.engines.engine import (
    DIALING_AGENT,
    AgentSpec,
    Choice,
    Engine,
    Launch,
    StartCommand,
    can_lack_hosts,
    container_failure,
    in_container,
    one_per_host,
)
from muster.engines.requeue import VARIABLES, tracking_env
from muster.engines.slurm.environment import in_slurm_allocation, read_slurm
from muster.engines.slurm.job_gpus import gpus_of_job
from muster.errors import MusterError, UsageError
from muster.hosts import expand
from muster.plan import Plan
from muster.spec import RunSpec

if TYPE_CHECKING:
    import argparse

    from muster.engines.requeue import Requeue
    from muster.engines.slurm.batch import Slurm

# Options for the job's own tasks, which srun would apply to the agents, of which there is one per host.
_UNSET = tuple(
    f"SLURM_{name}"
    for name in (
        *("CPUS_PER_TASK", "CPU_BIND", "CPU_BIND_LIST", "CPU_BIND_TYPE", "CPU_BIND_VERBOSE", "DISTRIBUTION"),
        *("EXCLUSIVE", "GPUS", "GPUS_PER_TASK", "GPU_BIND", "HINT", "LABELIO", "MEM_BIND", "MEM_PER_CPU"),
        *("NNODES", "NPROCS", "NTASKS", "NTASKS_PER_CORE", "NTASKS_PER_GPU", "NTASKS_PER_NODE", "NTASKS_PER_SOCKET"),
        *("NTASKS_PER_TRES", "OVERCOMMIT", "TASKS_PER_NODE", "THREADS_PER_CORE", "TRES_PER_TASK", "UNBUFFEREDIO"),
        *("MEM_PER_GPU", "WAIT"),
    )
)

_ENDED = re.compile(r"\*\*\* (?:JOB|STEP) (\d+)\S* ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z -]+?))? \*\*\*")
_TASK_ENDED = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: ")
_REASONS = {
    "TIME LIMIT": "it reached its time limit",
    "NODE FAILURE": "one of its hosts failed",
    "PREEMPTION": "it was preempted by another job",
}


class SlurmEngine(Engine):
    """srun inside an allocation; salloc gets one, sbatch queues a job."""

    name = "slurm"
    key_from = ("SLURMD_NODENAME",)
    unset = (*_UNSET, *VARIABLES)
    signals_from = "Slurm"
    job_kind = "Slurm job"
    more_memory = "request more memory (`muster submit --mem 64G`, or `--mem` for sbatch)"
    more_cpus = "--cpus-per-task=8 in Slurm"
    services: Mapping[str, str] = {"slurmd": "slurmd", "slurmstepd": "slurmd"}
    outside_job = (
        "not inside a Slurm allocation (SLURM_JOB_ID is not set)",
        'request one with --slurm-args "-N2 --gpus-per-node=4", or use `muster submit --slurm`',
    )
    allocation_option = "--slurm-args"

    def detect(self, env: Mapping[str, str]) -> Allocation | None:
        """The allocation that this process runs in."""
        return read_slurm(env) if in_slurm_allocation(env) else None

    def cancel_command(self, env: Mapping[str, str]) -> str:
        """scancel."""
        return f"scancel {env['SLURM_JOB_ID']}" if in_slurm_allocation(env) else ""

    def launch(self, choice: Choice, spec: RunSpec, folder: str) -> Launch:
        """One srun, or several if the hosts have different numbers of GPUs."""
        if choice.allocation is None:
            raise MusterError("--engine slurm needs a Slurm allocation")
        box = container_of(spec, folder)
        if shutil.which("srun") is None:
            raise MusterError(
                "--engine slurm: `srun` not found on this machine",
                hint="load the module that provides it, or use `--engine ssh -H host1,host2`",
            )
        agents = one_per_host(choice.hosts, inherits=box is None)
        python = spec.python_on_all(choice.hosts)
        gpus, unknown = gpus_of_job(os.environ)
        commands = srun_commands(
            choice.allocation,
            agents,
            python=python,
            box=box,
            gpus=gpus,
            alone=can_lack_hosts(spec),
        )
        from muster.engines.slurm.slurm_requeue import WITHOUT_BATCH_HOST  # here, because other engines do not need it

        can_lack = can_lack_hosts(spec)
        orphaned = WITHOUT_BATCH_HOST if can_lack and box is None else ""
        fewer = "hosts may get fewer than the job has, request them with --gpus-per-node"
        return Launch(
            engine=self,
            commands=commands,
            channel="dial-back",
            can_lack_hosts=can_lack,
            orphaned=orphaned,
            notes=(f"could not determine the GPUs that Slurm allocated ({unknown}); {fewer}",) if unknown else (),
        )

    def launch_one(self, launch: Launch, agent: AgentSpec) -> StartCommand | None:
        """An srun for this host alone; it fails if Slurm has removed the host from the job, because it was DOWN."""
        command = super().launch_one(launch, agent)
        together = next((each for each in launch.commands if agent in each.agents), None)
        if command is not None or together is None or not together.argv[3].startswith("--nodelist="):
            return command
        where = ("--nodes=1", "--ntasks=1", f"--nodelist={agent.host.name}")
        return replace(together, argv=("srun", *where, *together.argv[4:]), agents=(agent,))

    def requeue(self, env: Mapping[str, str]) -> Requeue | None:
        """scontrol requeue."""
        from muster.engines.slurm.slurm_requeue import read_requeue

        return read_requeue(env)

    def rank_env(self, plan: Plan, rank: int) -> Mapping[str, str]:
        """The variables that srun would have set for the ranks; scripts and libraries written for srun read them.

        Otherwise a rank would inherit the agent's own, which are the same for all ranks of a host.
        """
        place = plan.placement_of(rank)
        hosts, world = str(len(plan.placements)), str(plan.world_size)
        slots = ",".join(str(placement.slots) for placement in plan.placements)
        return {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank - place.first_rank),
            "SLURM_NODEID": str(plan.placements.index(place)),
            **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), hosts),
            **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), world),
            **dict.fromkeys(("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), slots),
            **tracking_env(plan, rank),
        }

    def explain(self, command: StartCommand, code: int | None, text: str) -> MusterError:
        """Explain the output of an srun that did not start its agents."""
        theirs = "\n".join(line for line in text.splitlines() if not line.startswith(("srun: ", "slurmstepd: ")))
        failure = container_failure(command, theirs)
        if failure is not None:
            return failure
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        ours = next((line for line in lines if line.startswith("muster: ")), None)
        if ours is not None:
            return MusterError(ours.removeprefix("muster: "), hint=_unreachable(ours))
        for pattern, hint in _SRUN_FAILURES:
            for line in lines:
                if pattern.search(line):
                    return MusterError(f"srun: {_bare(line)}", hint=hint)
        reason = next((why for why in map(self.why_ended, lines) if why), None)
        if reason:
            return MusterError(reason)
        said = _bare(lines[-1]) if lines else f"exit code {code}"
        begin = " ".join(command.argv[:3])
        return MusterError(f"srun did not start the agents: {said}", hint=f"check that `{begin} true` works")

    def why_ended(self, line: str) -> str | None:
        """Why Slurm ended the job, if this line of srun's output says so."""
        found = _ENDED.search(line)
        if found is None:
            return None
        job, due = found.groups()
        return f"Slurm ended job {job}: {_REASONS.get(due, due.lower()) if due else 'it was canceled (scancel)'}"

    def ended_agents(self, line: str) -> list[str]:
        """The hosts whose tasks have ended, if this line of srun's output says so."""
        found = _TASK_ENDED.match(line)
        return expand(found[1]) if found else []

    def add_options(self, group: argparse._ArgumentGroup) -> None:
        """`--slurm-args`, for salloc."""
        group.add_argument(
            "--slurm-args",
            metavar="ARGS",
            help='request a Slurm allocation with these salloc options: "-N4 --gpus-per-node=2 -p gpu"',
        )

    def allocate(self, asked: str, argv: Sequence[str], target: str, *, dry_run: bool, detach: bool = False) -> int:
        """Run salloc, which runs the same command line inside its allocation."""
        from muster.engines.slurm.salloc import salloc

        return salloc(asked, argv, target, dry_run=dry_run, detach=detach)

    @property
    def batch(self) -> Slurm:
        """sbatch."""
        from muster.engines.slurm.batch import Slurm

        return Slurm()


def srun_commands(
    allocation: Allocation,
    agents: Sequence[AgentSpec],
    *,
    python: str | None,
    box: Container | None,
    gpus: Mapping[str, int] | None = None,
    alone: bool = False,
) -> tuple[StartCommand, ...]:
    """The srun commands that start an agent on each of these hosts of the allocation.

    `gpus` is the number of GPUs that the job has on each host, if srun needs it. `alone` gives each host its own srun:
    when a node goes down, srun ends its whole step, even with --no-kill (Slurm 22.05).
    """
    agent = (python or (sys.executable if box is None else "python3"), "-c", DIALING_AGENT)
    rest = ("--ntasks-per-node=1", *_OPTIONS, *in_container(agent, box))
    return tuple(
        StartCommand(argv=_srun(allocation, some, (*share, *rest), alone=alone), agents=tuple(some), box=box)
        for some, share in _shares(agents, {} if allocation.groups else gpus or {}, alone=alone)
    )


def _shares(
    agents: Sequence[AgentSpec], gpus: Mapping[str, int], *, alone: bool
) -> list[tuple[Sequence[AgentSpec], tuple[str, ...]]]:
    """Groups of agents that one srun can start, with its GPU option: one srun requests the same number on each host."""
    if not gpus:
        return [([agent], ()) for agent in agents] if alone else [(agents, ())]
    if len(set(gpus.values())) == 1 and not alone:
        return [(agents, (f"--gres=gpu:{next(iter(gpus.values()))}",))]
    counts = [(agent, gpus.get(agent.host.name, 0)) for agent in agents]
    return [([agent], (f"--gpus={count}" if count else "--gres=none",)) for agent, count in counts]


_OPTIONS = (
    "--overlap",  # the batch script's own step holds the job's resources
    "--cpu-bind=none",  # the ranks of an agent use all CPUs of the job on its host, not the one CPU of a task
    "--mpi=none",
    "--input=none",
    "--export=ALL",
    "--kill-on-bad-exit=0",  # the controller decides what happens when one host fails
    "--wait=0",
    "--job-name=muster",
)


def _srun(
    allocation: Allocation, agents: Sequence[AgentSpec], command: tuple[str, ...], *, alone: bool
) -> tuple[str, ...]:
    names = [agent.host.name for agent in agents]
    where = (f"--nodes={len(names)}", f"--ntasks={len(names)}", f"--nodelist={','.join(names)}")
    if not allocation.groups:
        return "srun", *where, *command
    if alone:
        group = allocation.groups[[host.name for host in allocation.hosts].index(names[0])]
        return "srun", f"--het-group={group}", *where, *command
    if len(names) != len(allocation.hosts):
        raise UsageError(
            f"-H names {len(names)} of the {len(allocation.hosts)} hosts of a heterogeneous job; srun needs all",
            hint="omit -H",
        )
    # Each group with its own number of tasks: for all groups at once, srun uses the job's own number (-n3 on two
    # hosts), which takes precedence over --ntasks-per-node=1.
    parts: list[str] = []
    for group in sorted(set(allocation.groups)):
        hosts = allocation.groups.count(group)
        parts += [":", f"--het-group={group}", f"--nodes={hosts}", f"--ntasks={hosts}", *command]
    return "srun", *parts[1:]


def _bare(line: str) -> str:
    """A line of Slurm's output without the program's prefix."""
    return re.sub(r"^(?:(?:srun|slurmstepd|slurmstepd-\S+|error|fatal):\s*)+", "", line)


def _unreachable(words: str) -> str:
    if "cannot reach" not in words:
        return "choose another Python with `--python PATH`"
    return "check for a firewall, or use `muster submit --slurm`, which runs Muster on one of the job's hosts"


_SRUN_FAILURES = (
    (re.compile(r"execve\(\).*: No such file|can't find .* in PATH", re.I), "choose a Python with `--python PATH`"),
    (
        re.compile(r"Invalid job id|has expired|already completing|Job/step already", re.I),
        "this allocation has ended; exit its shell and request a new one",
    ),
    (
        re.compile(r"Unable to contact slurm|Connection refused|Zero Bytes were transmitted", re.I),
        "check that slurmctld is running: `sinfo`",
    ),
    (re.compile(r"node configuration is not available|Invalid node name|More processors requested", re.I), None),
)

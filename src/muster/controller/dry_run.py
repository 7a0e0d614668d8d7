"""`--dry-run`: the plan and the command lines as text, without connecting to any host."""

from __future__ import annotations

import os
from collections.abc import Sequence

from muster.engines.engine import AgentSpec, Launch, leaders
from muster.environment import SECRET_NAME
from muster.errors import UsageError
from muster.hosts import Host
from muster.job import Job
from muster.plan import FOUND_AT_START, Plan, fill_slots, make_plan, rank_environment
from muster.shared.machine import gpu_count
from muster.text import count


def describe(job: Job, launch: Launch) -> str:
    """Rank, host, GPU (`?` if only the host knows) and environment of every rank, and the command for each host."""
    agents = [launch.agents[position] for position in leaders(launch.agents)]
    used = len(agents) - job.spec.spares
    plan = _plan(job, agents[:used])
    known = {agent.name: agent.here or bool(job.spec.lab) for agent in agents}
    gpus = gpu_count(os.environ)
    lines = [f"job {plan.job_id}: {count(plan.world_size, 'rank')} on {count(len(plan.placements), 'host')}", ""]
    lines.append(f"{'rank':>4}  {'host':<20}  {'local':>5}  GPU")
    for placement in plan.placements:
        for local, rank in enumerate(placement.ranks):
            here = local if local < gpus else "-"
            gpu = placement.host.gpus[local] if placement.host.gpus else here if known[placement.name] else "?"
            lines.append(f"{rank:>4}  {placement.name:<20}  {local:>5}  {gpu}")
    if job.spec.spares:
        lines += ["", f"spare           {', '.join(agent.name for agent in agents[used:])}"]
    lines += [
        "",
        f"master address  {plan.master_addr}",
        f"master port     {plan.master_port or FOUND_AT_START}",
    ]
    lines += ["", "environment of rank 0; RANK, LOCAL_RANK etc. differ on other ranks"]
    lines += [f"  {name}={value}" for name, value in rank_environment(plan, 0).items()]
    lines += [f"  {name}={_hide(name, value)}" for name, value in {**job.carried, **job.spec.env}.items()]
    for placement in plan.placements:
        if placement.env:
            lines += [f"on {placement.name}"] + [f"  {name}={value}" for name, value in placement.env.items()]
    lines += ["", f"in {job.spec.cwd}: python {job.spec.command}"]
    lines += [f"imported once on each host: {', '.join(job.preload)}" if job.preload else "no zygote"]
    lines += [job.preload_reason] if job.preload_reason else []
    one_each = len(launch.lines) == len(agents)
    lines += ["", "commands started here, one for each host" if one_each else "command started here, one for all hosts"]
    lines += [f"  {line}" for line in launch.lines]
    return "\n".join(lines) + "\n"


def _hide(name: str, value: str) -> str:
    """The value of a variable, hidden if its name looks like a secret."""
    return "(set, not shown)" if SECRET_NAME.search(name) else value


def _plan(job: Job, agents: Sequence[AgentSpec]) -> Plan:
    hosts: list[Host] = []
    nproc = job.spec.nproc
    for agent in agents:
        host = agent.host
        if host.slots is None and nproc is None and not agent.here:
            raise UsageError(
                f"{host.name}: --dry-run does not connect, so the number of GPUs is unknown",
                hint=f"give the number of ranks: `{host.name}:8` or `--nproc 8`",
            )
        hosts.append(fill_slots(host, nproc=nproc, gpus=gpu_count(os.environ) if agent.here else 0))
    env = {**job.carried, **job.spec.env}
    plan = make_plan(
        job.id,
        hosts,
        names=[agent.name for agent in agents],
        threads=[0] * len(hosts),
        restarts=job.spec.restarts,
        user_env=env,
        role=job.spec.role,
        has_store=job.has_store,
    )
    return plan.at(job.spec.master_addr or FOUND_AT_START, job.spec.master_port or 0)

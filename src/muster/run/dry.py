"""`--dry-run`: the plan and the command lines as text, made without asking any host."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from muster.agent.machine import gpu_count
from muster.errors import UsageError
from muster.hosts import Host
from muster.job import Job
from muster.plan import FOUND_AT_START, Plan, fill_slots, make_plan, rank_environment
from muster.run.words import count
from muster.transports import Command

_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


def describe(job: Job, commands: Sequence[Command], *, nproc: int | None) -> str:
    """Rank, host, GPU and environment of every rank, and what is started for each host."""
    plan = _plan(job, commands, nproc)
    # A host that is not asked is taken to have the GPUs its slots are for; this machine is known.
    known_gpus = {command.host.name: command.over_ssh or gpu_count(os.environ) > 0 for command in commands}
    lines = [f"job {plan.job_id}: {count(plan.world_size, 'rank')} on {count(len(plan.placements), 'host')}", ""]
    lines.append(f"{'rank':>4}  {'host':<20}  {'local':>5}  GPU")
    for placement in plan.placements:
        for local, rank in enumerate(placement.ranks):
            gpu = (
                placement.host.gpus[local]
                if placement.host.gpus
                else (local if known_gpus[placement.host.name] else "-")
            )
            lines.append(f"{rank:>4}  {placement.name:<20}  {local:>5}  {gpu}")
    lines += [
        "",
        f"master address  {plan.master_addr}",
        f"master port     {plan.master_port or FOUND_AT_START}",
    ]
    lines += ["", "environment of rank 0; RANK, LOCAL_RANK and the like count up in the others"]
    lines += [f"  {name}={value}" for name, value in rank_environment(plan, 0).items()]
    lines += [f"  {name}={_hide(name, value)}" for name, value in {**job.carried, **job.env}.items()]
    for placement in plan.placements:
        if placement.env:
            lines += [f"on {placement.name}"] + [f"  {name}={value}" for name, value in placement.env.items()]
    lines += ["", f"in {job.cwd}: python {job.command}"]
    lines += [f"imported once on each host: {', '.join(job.preload)}" if job.preload else "no zygote"]
    lines += [job.preload_reason] if job.preload_reason else []
    lines += ["", "started here, one for each host"]
    lines += [f"  {command}" for command in commands]
    return "\n".join(lines) + "\n"


def _hide(name: str, value: str) -> str:
    """A variable's value, unless its name says that it is nobody's business."""
    return "(set, not shown)" if _SECRET.search(name) else value


def _plan(job: Job, commands: Sequence[Command], nproc: int | None) -> Plan:
    hosts: list[Host] = []
    for command in commands:
        host = command.host
        if host.slots is None and nproc is None and command.over_ssh:
            raise UsageError(
                f"{host.name}: how many GPUs it has is known only when it is asked, and a dry run asks nobody",
                hint=f"write `{host.name}:8`, or `--nproc 8`",
            )
        hosts.append(fill_slots(host, nproc=nproc, gpus=0 if command.over_ssh else gpu_count(os.environ)))
    env = {**job.carried, **job.env}
    plan = make_plan(job.id, hosts, threads=[0] * len(hosts), restarts=job.restarts, user_env=env)
    return plan.at(job.master_addr or FOUND_AT_START, job.master_port or 0)

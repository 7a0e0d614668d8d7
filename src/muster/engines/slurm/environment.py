"""Reads Slurm's environment variables: the hosts of an allocation (sbatch, salloc, srun), and the rank of a task.

Observed in Slurm 22.05:

- SLURM_TASKS_PER_NODE is always set. Without -n it is 1 for each host, or the number of CPUs with --exclusive; it is a
  number of ranks only if tasks were requested, in which case SLURM_NTASKS is set as well.
- For a heterogeneous job, sbatch sets the plain variables for the first group, and salloc does not set them: the groups
  are in SLURM_JOB_NODELIST_HET_GROUP_0, SLURM_TASKS_PER_NODE_HET_GROUP_0 and so on.
- Inside a step SLURM_JOB_NODELIST is still the job's, but SLURM_NTASKS and SLURM_TASKS_PER_NODE are the step's.
  The shell that salloc opens on a compute node (`use_interactive_step`) is a step with the job's own values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from muster.engines.allocation import Allocation
from muster.engines.rank_variables import ONE_HOST, Clue, RankVariables, joined, optional, rank_and_size
from muster.errors import UsageError
from muster.hosts import Host, expand
from muster.hosts.name_ranges import MAX_HOSTS

_FIRST_SPECIAL_STEP = 0xFFFFFFFA
"""Step ids from here on are not sruns of the user: interactive shell, batch script, extern (slurm.h)."""

_COUNTS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
"""One part of a Slurm list of numbers: `2(x3),1` is 2, 2, 2, 1."""

_BROKEN_HINT = "check the output of `env | grep SLURM_`, or use `--engine ssh -H host1,host2`"


def in_slurm_allocation(env: Mapping[str, str]) -> bool:
    """Whether this is the environment of a Slurm job."""
    return bool(env.get("SLURM_JOB_ID"))


def in_step(env: Mapping[str, str]) -> bool:
    """Whether this is the environment of an srun task, as opposed to a salloc shell or a batch script."""
    step = env.get("SLURM_STEP_ID", "")
    return step.isascii() and step.isdigit() and len(step) <= 18 and int(step) < _FIRST_SPECIAL_STEP


def read_slurm(env: Mapping[str, str]) -> Allocation:
    """The allocation of a job; its hosts have `tasks` only if the user requested tasks, and never `slots`."""
    job = env.get("SLURM_JOB_ID")
    if not job:
        raise UsageError(
            "not inside a Slurm allocation (SLURM_JOB_ID is not set)",
            hint="run it in an sbatch script or a salloc shell, or request an allocation: --slurm-args '-N2'",
        )
    step = in_step(env)
    if step:
        _refuse_many_tasks(env, job)
    groups = _group_count(env)
    if groups:
        return _heterogeneous(env, job, groups)
    names = _names(env, "SLURM_JOB_NODELIST")
    if step and env.get("SLURM_STEP_NODELIST") != env["SLURM_JOB_NODELIST"]:
        note = f"ignoring the tasks of step {job}.{env['SLURM_STEP_ID']}, which does not span the whole allocation"
        return Allocation(
            kind="Slurm allocation", id=job, hosts=tuple(Host(name=name) for name in names), notes=(note,)
        )
    tasks = _tasks(env, names, "SLURM_JOB_NODELIST", "")
    notes = (_tasks_note(env, ""),) if tasks else ()
    return Allocation(kind="Slurm allocation", id=job, hosts=_hosts(names, tasks), notes=notes)


def _heterogeneous(env: Mapping[str, str], job: str, groups: int) -> Allocation:
    hosts: list[Host] = []
    group_of: dict[str, int] = {}
    notes: list[str] = []
    for group in range(groups):
        suffix = f"_HET_GROUP_{group}"
        source = f"SLURM_JOB_NODELIST{suffix}"
        names = _names(env, source)
        for name in names:
            if group_of.setdefault(name, group) != group:
                raise UsageError(
                    f"{source}: {name} is also in group {group_of[name]}, but a host can be in one group only",
                    hint=_BROKEN_HINT,
                )
        tasks = _tasks(env, names, source, suffix)
        hosts += _hosts(names, tasks)
        if tasks:
            notes.append(_tasks_note(env, suffix))
    notes.insert(0, f"a heterogeneous job of {groups} groups")
    return Allocation(
        kind="Slurm allocation",
        id=job,
        hosts=tuple(hosts),
        groups=tuple(group_of[host.name] for host in hosts),
        notes=tuple(notes),
    )


def _refuse_many_tasks(env: Mapping[str, str], job: str) -> None:
    tasks = env.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1":
        raise UsageError(
            f"this is one of the {tasks} tasks of step {job}.{env['SLURM_STEP_ID']}; each would run the whole job",
            hint="start `muster run` once, without srun; it starts its own processes on every host",
        )


def _group_count(env: Mapping[str, str]) -> int:
    text = env.get("SLURM_HET_SIZE", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise UsageError(f"SLURM_HET_SIZE={text} is not a number", hint=_BROKEN_HINT)
    return int(text)


def _names(env: Mapping[str, str], source: str) -> list[str]:
    text = env.get(source)
    if not text:
        raise UsageError(
            f"SLURM_JOB_ID={env['SLURM_JOB_ID']} is set but {source} is not, so the job's hosts are unknown",
            hint="use `--engine local` for this machine only, or `--engine ssh -H host1,host2`",
        )
    names = expand(text, source=source)
    for name, times in Counter(names).items():
        if times > 1:
            raise UsageError(f"{source}={text} lists {name} more than once", hint=_BROKEN_HINT)
    return names


def _tasks(env: Mapping[str, str], names: list[str], source: str, suffix: str) -> list[int]:
    """The number of tasks of each host; empty if none were requested."""
    variable = f"SLURM_TASKS_PER_NODE{suffix}"
    # The manual guarantees SLURM_NTASKS only for -n; --ntasks-per-node also sets its own variable.
    if not env.get(variable) or not (env.get(f"SLURM_NTASKS{suffix}") or env.get(f"SLURM_NTASKS_PER_NODE{suffix}")):
        return []
    counts = _expand_counts(env[variable], source=variable)
    if len(counts) != len(names):
        raise UsageError(
            f"{variable}={env[variable]} lists the tasks of {len(counts)} hosts, "
            f"but {source}={env[source]} lists {len(names)}",
            hint=_BROKEN_HINT,
        )
    return counts


def _expand_counts(text: str, *, source: str) -> list[int]:
    """Expand a list such as SLURM_TASKS_PER_NODE to one number per host, in the order of the node list."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNTS.fullmatch(part.strip())
        times = int(match[2] or 1) if match else 0
        if match is None or not 0 < times <= MAX_HOSTS - len(counts):
            raise UsageError(
                f"{source}={text} is not a list of numbers: invalid part `{part}`",
                hint="Slurm writes one number per host, for example `2(x3),1` for 2, 2, 2 and 1",
            )
        counts += [int(match[1])] * times
    return counts


def _hosts(names: list[str], tasks: list[int]) -> tuple[Host, ...]:
    return tuple(Host(name=name, tasks=tasks[i] or None if tasks else None) for i, name in enumerate(names))


def _tasks_note(env: Mapping[str, str], suffix: str) -> str:
    variable = f"SLURM_TASKS_PER_NODE{suffix}"
    return f"{variable}={env[variable]} sets the number of ranks on hosts without GPUs"


# --- tasks of srun --------------------------------------------------------------------------------------------


def step_task(env: Mapping[str, str]) -> RankVariables | None:
    """The rank of an srun task; None in an sbatch script or a salloc shell."""
    # Not SLURM_NTASKS, which may be the allocation's (Lightning issue 20776); SLURM_STEP_NUM_TASKS is the step's.
    if not in_step(env) or not {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"} <= env.keys():
        return None
    rank, size = rank_and_size(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    local_size = _tasks_here(env)
    return RankVariables(
        launcher="srun",
        rank=rank,
        size=size,
        local_rank=optional(env, "SLURM_LOCALID"),
        local_size=local_size,
        why=f"SLURM_STEP_ID={env['SLURM_STEP_ID']}, SLURM_PROCID={rank} and SLURM_STEP_NUM_TASKS={size}",
        job=joined(env, "SLURM_JOB_ID", "SLURM_STEP_ID"),
        clue=ONE_HOST if local_size == size else nodelist_clue(env, "SLURM_STEP_NODELIST"),
    )


def _tasks_here(env: Mapping[str, str]) -> int | None:
    name, node = "SLURM_STEP_TASKS_PER_NODE", optional(env, "SLURM_NODEID")
    counts = _expand_counts(env[name], source=name) if env.get(name) else []
    return counts[node] if node is not None and node < len(counts) else None


def nodelist_clue(env: Mapping[str, str], name: str) -> Clue | None:
    """The hosts of a node list; rank 0 is on the first, unless `srun -m arbitrary` placed it elsewhere."""
    if not env.get(name):
        return None
    hosts = tuple(expand(env[name], source=name))
    return Clue(hosts=hosts, reason=f"looking for rank 0 from {hosts[0]} on, the first host of {name}")

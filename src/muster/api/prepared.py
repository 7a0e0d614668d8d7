"""From a RunSpec to a job with its engine: everything decided on this machine before any process starts."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from muster.controller.keep.fit import why_not_kept
from muster.controller.notifications import check_ways
from muster.controller.result_paths import check_patterns
from muster.controller.script_text import chooses_port, sets_before_torch, uses_dynamo
from muster.controller.source_code import find_script, is_below
from muster.engines.choice import choose
from muster.engines.engine import Choice, Launch
from muster.errors import UsageError
from muster.hosts import Host
from muster.job import Job, job_folder, new_job_id
from muster.jobs.run_command import RunCommand
from muster.spec import RESTARTS, RunSpec
from muster.text import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.jobs.requeue_marks import EarlierRuns


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job, and how its agents are started."""

    job: Job
    choice: Choice
    launch: Launch
    notes: tuple[str, ...] = ()
    """Lines that the screen shows first."""
    warnings: tuple[str, ...] = ()
    """Lines that it shows next, even with --quiet."""
    command: RunCommand | None = None
    """What `muster again` types to repeat it."""


@contextmanager
def lab_hosts(spec: RunSpec, *, dry_run: bool = False) -> Generator[RunSpec]:
    """Create the virtual hosts of a run with a lab; they exist until the block ends."""
    if not spec.lab:
        yield spec
        return
    located = replace(spec, hosts=_hosts_of_lab(spec.lab, spec.hosts))
    if dry_run:
        yield located
        return
    from muster.lab import Lab

    with Lab(spec.lab, bind=(os.path.abspath(spec.cwd),)) as lab:
        yield replace(located, ssh=tuple(lab.ssh_argv()))


def prepare(
    spec: RunSpec, *, hosts: Sequence[Host] | None = None, history: bool = True, must_keep: bool = True
) -> Prepared:
    """Choose the engine, find the script and decide what to preload; `hosts` restricts the run to some of its hosts.

    Without `history`, what earlier jobs learned about the hosts is ignored. Unless it `must_keep`, hosts that cannot
    be kept ready for the next run are not.
    """
    choice = choose(spec, os.environ)
    if hosts is not None:
        choice = replace(choice, hosts=tuple(hosts))
    warnings: tuple[str, ...] = ()
    if history and choice.engine.name != "local":  # there is no other host to choose
        from muster.api.known_hosts import apply_history

        choice, warnings = apply_history(spec, choice)
    requeue = choice.engine.requeue(os.environ) if spec.target else None
    earlier: EarlierRuns | None = None
    if requeue is not None and requeue.limit:
        from muster.jobs.requeue_marks import find_earlier  # most jobs are not requeued

        earlier = find_earlier(requeue)
    job = make_job(spec, choice, earlier)
    launch = choice.engine.launch(choice, job.spec, str(job_folder(job.id)))
    if requeue is not None:
        launch = replace(launch, requeue=replace(requeue, count=earlier.requeues if earlier is not None else 0))
    if spec.image and any(command.box is None for command in launch.commands):
        raise UsageError(f"--engine {launch.name} does not run containers", hint="leave --image out")
    why_not = why_not_kept(job.spec, launch) if spec.keep else ""
    if why_not and must_keep:
        raise UsageError(f"--keep has no effect: {why_not}", hint="leave it out")
    notes = (*choice.said, *launch.notes, *(() if earlier is None else (str(earlier),)))
    return Prepared(job=job, choice=choice, launch=launch, notes=notes, warnings=warnings)


def make_job(spec: RunSpec, choice: Choice, earlier: EarlierRuns | None = None) -> Job:
    """Make the job for the hosts of a choice; a spec without a target comes from `muster check`.

    A job that a scheduler has requeued continues the `earlier` one.
    """
    spec = replace(spec, cwd=os.path.abspath(spec.cwd))
    if (spec.container or spec.container_args) and spec.image is None:
        flag = "--container" if spec.container else "--container-args"
        raise UsageError(f"{flag} needs --image", hint="add `--image IMAGE`")
    check_ways(spec.notify)
    check_patterns(spec.fetch, sync=spec.sync)
    if spec.sync and os.path.isabs(spec.target) and is_below(spec.target, spec.cwd):
        # Run the copy, not the original file.
        spec = replace(spec, target=os.path.relpath(spec.target, spec.cwd))
    if not spec.watch:
        spec = replace(spec, env={**spec.env, "MUSTER_WATCH": "0"})
    script = find_script(spec) if spec.target else None
    text = spec.call.text if spec.call is not None else script.text if script is not None else ""
    spec = _checked_recovery(spec, choice)
    preload, reason = _preload(spec, choice, text)
    return Job(
        id=_job_id(spec, choice, earlier),
        spec=spec,
        hosts=choice.hosts,
        carried=choice.engine.carried(os.environ, spec),
        script=script,
        preload=preload,
        preload_reason=reason,
        first_attempt=earlier.next_attempt if earlier is not None else 0,
        has_store=not chooses_port(text),
    )


def _job_id(spec: RunSpec, choice: Choice, earlier: EarlierRuns | None) -> str:
    if earlier is not None:
        return earlier.job_id
    chosen = choice.allocation.job_id if choice.allocation is not None and spec.target else ""
    return chosen or new_job_id(spec.target or "check", spec.name)


def _checked_recovery(spec: RunSpec, choice: Choice) -> RunSpec:
    """Reject options for lost hosts that contradict each other or the hosts; spares without --restarts imply some."""
    is_elastic = bool(spec.spares or spec.min_hosts)
    if choice.engine.no_spares and (is_elastic or spec.rejoin is not None):
        raise UsageError(choice.engine.no_spares, hint="leave --spares, --min-hosts and --rejoin out")
    if choice.engine.no_restarts and spec.restarts:
        raise UsageError(choice.engine.no_restarts, hint="leave it out")
    hosts, used = len(choice.hosts), len(choice.hosts) - spec.spares
    if spec.spares and used < 1:
        fix = f"use `--spares {hosts - 1}` or fewer" if hosts > 1 else "add hosts with -H, or leave --spares out"
        raise UsageError(
            f"--spares {spec.spares} leaves no host for ranks: the job has {count(hosts, 'host')}", hint=fix
        )
    if spec.min_hosts and spec.min_hosts > used:
        spare = f" and {count(spec.spares, 'spare')}" if spec.spares else ""
        raise UsageError(
            f"--min-hosts {spec.min_hosts} is more than the job has: {count(used, 'host')}{spare}",
            hint=f"use `--min-hosts {used}` or fewer",
        )
    if spec.rejoin is not None and not spec.min_hosts:
        raise UsageError(
            "--rejoin has no effect without --min-hosts", hint="add `--min-hosts N`, or leave --rejoin out"
        )
    return replace(spec, restarts=spec.restarts or RESTARTS) if is_elastic else spec


def _preload(spec: RunSpec, choice: Choice, text: str) -> tuple[tuple[str, ...], str]:
    """Return what the zygote of each host imports (nothing without a zygote) and why; `text` is the user's source."""
    if not spec.zygote:
        if spec.preload:
            raise UsageError("--preload has no effect with --no-zygote", hint="leave one of them out")
        return (), ""
    if choice.engine.no_zygote:
        if spec.preload:
            raise UsageError(choice.engine.no_zygote, hint="leave it out")
        return (), ""
    variable = sets_before_torch(text)
    if variable and not spec.preload:
        return (), f"{spec.target} sets {variable} before it imports torch, so each rank starts as a fresh interpreter"
    preload = ("torch", "torch.distributed", *spec.preload)
    word = uses_dynamo(text)
    if not word or "torch._dynamo" in preload:
        return preload, ""
    return (*preload, "torch._dynamo"), f"torch._dynamo is imported before the fork because {spec.target} uses {word}"


def _hosts_of_lab(size: int, chosen: Sequence[Host] | None) -> tuple[Host, ...]:
    """Return the hosts of a lab that a run uses: those that -H lists, else all."""
    hosts = tuple(Host(name=f"h{number}") for number in range(1, size + 1))
    for host in chosen or ():
        if replace(host, slots=None, gpus=None) not in hosts:
            known = "its hosts are h1" + (f" to h{size}" if size > 1 else "") + ", without a user or port"
            raise UsageError(f"-H: {host} is not a host of --lab {size}", hint=known)
    return hosts if chosen is None else tuple(chosen)

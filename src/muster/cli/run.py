"""`muster run`: reads the command line, then runs the job or prints its plan."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING

from muster.api.arguments import Parser
from muster.api.hints import misplaced
from muster.api.prepared import Prepared, lab_hosts, make_job, prepare
from muster.api.run_options import allocate, asking_for_allocation, parse_options, run_parser, spec_of
from muster.api.torchrun_options import explain, refuse
from muster.cli.init_process import continue_below_init
from muster.cli.script_command import read_command
from muster.engines.engine import Choice, this_host
from muster.engines.kubernetes.pod_environment import in_pod
from muster.environment import CARRIED
from muster.errors import MusterError, UsageError
from muster.jobs.run_command import RunCommand
from muster.spec import LOCAL_RANK, RunSpec

if TYPE_CHECKING:
    from muster.cli.detach import Background
    from muster.controller.controller import Controller
    from muster.controller.diagnosis.verdict import Verdict

EXAMPLES = f"""\
examples:
  muster run train.py --lr 0.1                       every GPU of this machine
  muster run --nproc 4 train.py                      four ranks on this machine
  muster run -H gpu[01-04]:8,box:2 train.py          five hosts over ssh, 34 ranks
  muster run -H big:0,2,5 train.py                   three GPUs of one host
  muster run --hostfile hosts.txt -m mypkg.train     hosts from an MPI or DeepSpeed hostfile
  muster run -H @lab train.py                        hosts of a group in muster.toml
  muster run train.py                                inside a Slurm or PBS job: all its hosts
  muster run --engine slurm --slurm-args "-N4 --gpus-per-node=2" train.py
  muster run --engine mpi -H a:2,b:2 train.py        ranks started by mpirun, for scripts that use MPI
  muster run --image pytorch/pytorch -H a,b train.py inside a container on each host
  muster run --lab 2 --nproc 2 train.py              two virtual hosts on this machine
  muster run -H gpu[01-09]:8 --spares 1 train.py     eight hosts; the ninth replaces one that is lost
  muster run --keep 30m train.py                     the next run on the same hosts starts in a third of a second
  muster run --detach train.py                       in the background; see muster attach, logs, top and stop
  muster run --dashboard train.py                    with a dashboard in the browser
  muster run --dry-run -H a:8,b:8 train.py           print the plan without running anything
  muster run torchrun --nproc-per-node 4 train.py    an existing torchrun or python command line

Put Muster's options before the script, and the script's own options after it. torchrun's options work here as well.
Underscores in options are the same as dashes: --dry_run.
Defaults of options can be set in muster.toml; `muster config` shows what is in effect.

{fill("Environment variables that Muster copies to other hosts: " + ", ".join(CARRIED) + ".", 105)}

Exit code: that of the first rank that failed (128 + n if signal n killed it); 2 for a wrong command line;
124 if --on-hang kill ended the job; 125 if Muster or a host failed, not the script.
"""


def parser() -> Parser:
    """Return the parser of `muster run`."""
    return run_parser(
        usage="muster run [options] SCRIPT [its arguments]\n       muster run [options] -m MODULE [its arguments]",
        description="Run a torchrun or DDP script, unmodified, on this machine or on many hosts.",
        epilog=EXAMPLES,
    )


def parse(
    argv: Sequence[str], *, places: bool = True, typed: Sequence[str] | None = None
) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the script with its arguments, if given; without `places`, hosts are not configured.

    `typed` is what hints show before the script, if it is not `muster run` with the options.
    """
    p = parser()
    options = parse_options(p, argv, "run", places=places)
    own = argv[: len(argv) - len(options.command)]
    return options, read_command(p, options, ("muster", "run", *own) if typed is None else typed)


def main(argv: list[str]) -> int:
    """Run the job the command line describes and return its exit code."""
    begin = time.time()
    continue_below_init()
    return start(RunCommand.here(argv), begin)


def start(typed: RunCommand, begin: float) -> int:
    """Run the job of a command line, which may be an earlier one with changes, and return its exit code."""
    argv = typed.argv
    options, command = parse(argv)
    if not command:
        raise UsageError(
            "no script to run",
            hint="for example `muster run train.py --lr 0.1`; `muster run --help` shows more",
        )
    refuse(options)
    check_controller(options)
    if not getattr(options, "reuse", True) and "keep" not in options.typed:
        options.keep = 0.0
    spec = typed.changed(spec_of(options, command))
    if spec.keep and "keep" in options.typed and not spec.controller:
        spec = replace(spec, controller="local")  # this machine keeps the agents
    engine = asking_for_allocation(options)
    if engine is not None:
        # Detect a missing script or an invalid option now, not after hours in the queue.
        make_job(spec, Choice(engine=engine, hosts=(this_host(),)))
        return allocate(engine, options, spec, ["run", *argv], command[0])
    if options.detach and not options.dry_run:
        from muster.cli.detach import detached
        from muster.cli.remote_start import start_remotely

        if spec.hosts is not None or spec.controller:
            is_typed = "controller" in options.typed
            code = start_remotely(spec, lambda: _prepared(options, spec, typed), is_typed=is_typed)
            if code is not None:
                return code
        return detached(lambda background: _run(options, spec, typed, begin, background))
    if in_pod(os.environ) and not options.dry_run:
        return _run_in_pod(options, spec, typed, begin)
    return _run(options, spec, typed, begin)


def _run_in_pod(options: argparse.Namespace, spec: RunSpec, typed: RunCommand, begin: float) -> int:
    """Run the job, or the part of this pod in it; Kubernetes keeps how it ended."""
    from muster.cli.pod_worker import follow, leave_message

    if hasattr(options, "nnodes"):
        os.environ["PET_NNODES"] = str(options.nnodes[1])  # what torchrun reads as well
    try:
        follow(spec)
        return _run(options, spec, typed, begin)
    except MusterError as error:
        leave_message(error.message)
        raise


def _run(
    options: argparse.Namespace,
    spec: RunSpec,
    typed: RunCommand,
    begin: float,
    background: Background | None = None,
) -> int:
    with lab_hosts(spec, dry_run=options.dry_run) as located:
        prepared = _prepared(options, located, typed)
        if options.dry_run:
            return print_plan(prepared)
        return run(prepared, begin, background)


def _prepared(options: argparse.Namespace, spec: RunSpec, typed: RunCommand) -> Prepared:
    prepared = prepare(spec, must_keep="keep" in options.typed)
    notes = (*explain(options, prepared.job.hosts), *_misplaced(prepared, typed.argv), *prepared.notes)
    return replace(prepared, notes=notes, command=typed)


def run(prepared: Prepared, begin: float, background: Background | None = None) -> int:
    """Run the job and show its output; in the background there is no terminal."""
    from muster.api.execution import execute, in_foreground

    if background is not None:
        allocation = prepared.choice.allocation
        background.settle(prepared.job.id, f"the job ends when {allocation} ends" if allocation else "")
    on_started = background.started if background is not None else None

    def run_job(controller: Controller) -> Verdict:
        if background is None:
            from muster.cli.suspend import Suspension

            controller.to_background = Suspension(controller)
        return in_foreground(controller, on_started=on_started, stdin=True)

    verdict = execute(prepared, run_job, begin=begin)
    if in_pod(os.environ) and not verdict.ok:
        from muster.cli.pod_worker import leave_message

        leave_message(verdict.in_short)
    return verdict.exit_code


def print_plan(prepared: Prepared) -> int:
    """Print the plan of a job."""
    from muster.controller.dry_run import describe

    sys.stdout.write(describe(prepared.job, prepared.launch))
    if not prepared.job.spec.quiet:
        sys.stderr.writelines(f"muster: {note}\n" for note in prepared.notes)
    sys.stderr.writelines(f"muster: {warning}\n" for warning in prepared.warnings)
    return 0


def check_controller(options: argparse.Namespace) -> None:
    """Raise UsageError for a --controller that has no effect."""
    if getattr(options, "controller", "") and not options.detach:
        raise UsageError("--controller works only with --detach", hint="add --detach, or leave --controller out")


def _misplaced(prepared: Prepared, argv: Sequence[str]) -> list[str]:
    """Return a hint about options of Muster that come after the script, which receives them instead."""
    job = prepared.job
    if job.script is None or not job.spec.args:
        return []
    p = parser()
    command = [job.spec.target, *(word for word in job.spec.args if word != LOCAL_RANK)]
    before_torchrun = len(argv) - len(p.parse_args(argv).command)
    hint = misplaced(p, argv, command, job.script.text, start=before_torchrun)
    return [hint] if hint else []

"""`muster stop`: end jobs on all their hosts, and wait until no process of them is left."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Sequence

from muster.api.arguments import Parser, option, seconds
from muster.errors import EXIT_MUSTER, MusterError, RemoteJob, UsageError
from muster.jobs import job_client
from muster.jobs.job_folders import KeptJob, find, here, read_job, running_jobs, short_id, the_running_one
from muster.jobs.job_messages import JobEnd, ShownLine
from muster.jobs.ps_text import REQUEUE, how_it_ended
from muster.jobs.running_job import has_gone, running_here, wait_until_gone
from muster.jobs.state import JobState
from muster.text import printable

_Lines = Iterable[ShownLine | JobEnd | None]

_BEYOND_GRACE = 30.0
"""Seconds that hosts may take beyond the grace period: lost ones, slow disks."""

_USUAL_GRACE = 60.0
"""Seconds to wait where only the job knows its grace period."""

EPILOG = """\
examples:
  muster stop                       the running job: SIGTERM to all ranks, SIGKILL after its --grace (5 s by default)
  muster stop train.py --grace 60   enough time for a last checkpoint
  muster stop 3f9a --now            SIGKILL at once
  muster stop 3f9a --stacks         save the stack traces of all ranks first
  muster stop --all                 every job that runs on this machine

JOB is a job's id, its beginning or its end, its name (--name), its script, or `last`.

Exit code: 0 when no process of the job is left, also if it had ended before; 2 for a wrong command line; 125 if it
could not be stopped. The job itself ends with 143, as after SIGTERM.
"""


def main(argv: list[str]) -> int:
    """Stop jobs and wait until they are gone."""
    parser = Parser(
        prog="muster stop", description="Stop a job on all its hosts, and wait until it has ended.", epilog=EPILOG
    )
    option(parser, "JOB", "a job that `muster ps` lists (default: the running one, if there is only one)", nargs="?")
    option(parser, "--all", "stop every job that runs on this machine")
    option(parser, "--grace DURATION", "time between SIGTERM and SIGKILL: 30s, 2m", type=seconds)
    option(parser, "--now", "SIGKILL at once: the same as --grace 0")
    option(parser, "--stacks", "first save the stack traces of all ranks in the job directory")
    args = parser.parse_args(argv)
    if args.now and args.grace is not None:
        raise UsageError("--now and --grace exclude each other", hint="type one of them")
    if args.all and args.job is not None:
        raise UsageError(
            "--all and JOB exclude each other", hint=f"type `muster stop --all` or `muster stop {args.job}`"
        )
    grace = 0.0 if args.now else args.grace
    if args.all:
        return _stop_all(argv, grace, stacks=args.stacks)
    job = _find(args.job) if args.job is not None else the_running_one("muster stop")
    if job.life == "ended" and job.state is not None and job.state.stopped_by == REQUEUE:
        raise UsageError(f"job {job.id} {how_it_ended(job)}, which will start it", hint=_cancel(job.state.sentence))
    if job.life in ("ended", "died", "unknown"):
        sys.stderr.write(f"muster: job {job.id} {how_it_ended(job)}; nothing to stop\n")
        return 0
    lines = _ask_to_end(job, running_here(job, "muster stop"), grace, stacks=args.stacks)
    return _wait(job, lines, grace)


def _cancel(sentence: str) -> str:
    """What to type to cancel a requeued job; the end of its verdict has the scheduler's id."""
    found = re.search(r"requeueing (Slurm|PBS) job ([\w.\[\]-]+)", sentence)
    if found is None:
        return "cancel it with scancel (Slurm) or qdel (PBS)"
    return f"cancel it with `{'scancel' if found[1] == 'Slurm' else 'qdel'} {found[2]}`"


def _find(text: str) -> KeptJob:
    try:
        return find(text)
    except UsageError as error:
        if text != "all":
            raise
        raise UsageError(error.message, hint="use `muster stop --all` to stop all jobs") from None


def _stop_all(argv: Sequence[str], grace: float | None, *, stacks: bool) -> int:
    """Ask all jobs to end before waiting for any; those that run on other machines are left alone."""
    asked: list[tuple[KeptJob, _Lines]] = []
    code = 0
    remote: list[str] = []
    for job in running_jobs():
        try:
            here(job)
            asked.append((job, _ask_to_end(job, running_here(job, "muster stop"), grace, stacks=stacks)))
        except RemoteJob as error:
            remote.append(error.folder)
        except UsageError:
            pass  # it has ended meanwhile
        except MusterError as error:
            sys.stderr.write(f"muster: not stopped: {printable(error.message)}\n")
            code = EXIT_MUSTER
    if not asked and not remote and not code:
        sys.stderr.write("muster: no job is running\n")
    return max(
        [code, *(_wait(job, lines, grace) for job, lines in asked), *(_stop_remote(folder, argv) for folder in remote)]
    )


def _stop_remote(folder: str, argv: Sequence[str]) -> int:
    """Stop a job whose controller is on another host; the other jobs are stopped even if that host does not answer."""
    from muster.cli.remote_commands import forward

    try:
        return forward("stop", argv, folder)
    except MusterError as error:
        sys.stderr.write(f"muster: not stopped: {printable(error.message)}\n")
        return EXIT_MUSTER


def _ask_to_end(job: KeptJob, state: JobState, grace: float | None, *, stacks: bool) -> _Lines:
    """Ask a job to end; returns what it shows from now on, because it may end before anybody asks for that."""
    lines: _Lines = ()
    try:
        lines = job_client.follow(job.folder, every=0.5)
        said = job_client.stop(job.folder, grace=grace, stacks=stacks)
        if said:
            sys.stderr.write(f"muster: {printable(said)}\n")
    except job_client.NoAnswer:
        # It may run on a file system without sockets, or be about to end.
        try:
            if not has_gone(state):
                os.kill(state.controller, signal.SIGTERM)
                if grace == 0:
                    time.sleep(0.2)
                    os.kill(state.controller, signal.SIGTERM)
        except ProcessLookupError:
            pass  # it has ended meanwhile
    return lines


def _wait(job: KeptJob, lines: _Lines, grace: float | None) -> int:
    limit = (_USUAL_GRACE if grace is None else grace) + _BEYOND_GRACE
    deadline = time.monotonic() + limit
    for line in lines:
        if line is not None and "text" in line and line["stream"] == 2 and line["text"].startswith("muster:"):
            sys.stderr.write(f"{printable(line['text'])}\n")
        if time.monotonic() > deadline:
            break
    if not wait_until_gone(job, max(1.0, deadline - time.monotonic())):
        sys.stderr.write(
            f"muster: job {job.id} has not ended after {limit:g} s; "
            f"kill it with `muster stop --now {short_id(job.id)}`\n"
        )
        return EXIT_MUSTER
    ended = read_job(job.folder)
    if ended.state is not None and ended.state.stuck:
        hosts = printable(", ".join(ended.state.stuck))
        sys.stderr.write(f"muster: job {job.id} has ended, but the kernel still holds a process of it on {hosts}\n")
        return EXIT_MUSTER
    sys.stderr.write(f"muster: job {job.id} {how_it_ended(ended)}; no process of it is left\n")
    return 0

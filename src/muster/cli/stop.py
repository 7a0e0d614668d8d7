"""`muster stop`: end a job, and say when all of it is gone."""

from __future__ import annotations

import os
import signal
import sys
import time

from muster.api.arguments import Parser, option, seconds
from muster.errors import EXIT_MUSTER, UsageError
from muster.jobs import job_client
from muster.jobs.job_folders import KeptJob, find, read_job
from muster.jobs.ps_text import how_it_ended
from muster.jobs.running_job import has_gone, running_here, wait_until_gone
from muster.jobs.state import JobState

_BEYOND_GRACE = 30.0
"""Seconds that hosts may take besides the grace: lost ones, slow disks."""

_USUAL_GRACE = 60.0
"""Seconds to wait where only the job knows its grace."""

EPILOG = """\
examples:
  muster stop last                  SIGTERM to all ranks, SIGKILL after the grace of the job (5 s unless it said more)
  muster stop train.py --grace 60   time enough for a last checkpoint
  muster stop 3f9a --now            SIGKILL at once
  muster stop 3f9a --stacks         write down first what every rank is doing

JOB is a job's id, its beginning or its end, the name of its script, or `last`.

Exit code: 0 when nothing of the job is left, also if it had ended before; 2 for a wrong command line; 125 if it could
not be ended. The job itself ends with 143, as by SIGTERM.
"""


def main(argv: list[str]) -> int:
    """Stop a job and wait until it is gone."""
    parser = Parser(prog="muster stop", description="End a job on all its hosts, and wait for that.", epilog=EPILOG)
    option(parser, "JOB", "a job that `muster ps` lists")
    option(parser, "--grace DURATION", "between SIGTERM and SIGKILL: 30s, 2m", type=seconds)
    option(parser, "--now", "SIGKILL at once: the same as --grace 0")
    option(parser, "--stacks", "first write the stacks of all ranks into the job's folder")
    args = parser.parse_args(argv)
    if args.now and args.grace is not None:
        raise UsageError("--now and --grace both say how long ranks may take", hint="give one of them")
    grace = 0.0 if args.now else args.grace
    job = find(args.job)
    if job.life in ("ended", "died", "unknown"):
        sys.stderr.write(f"muster: job {job.id} {how_it_ended(job)}; there is nothing to stop\n")
        return 0
    state = running_here(job, "muster stop")
    _ask_to_end(job, state, grace, stacks=args.stacks)
    return _wait(job, grace)


def _ask_to_end(job: KeptJob, state: JobState, grace: float | None, *, stacks: bool) -> None:
    try:
        said = job_client.stop(job.folder, grace=grace, stacks=stacks)
        if said:
            sys.stderr.write(f"muster: {said}\n")
    except job_client.NoAnswer:
        # It may run where sockets cannot be, or be about to end.
        try:
            if not has_gone(state):
                os.kill(state.controller, signal.SIGTERM)
                if grace == 0:
                    time.sleep(0.2)
                    os.kill(state.controller, signal.SIGTERM)
        except ProcessLookupError:
            pass  # it has ended meanwhile


def _wait(job: KeptJob, grace: float | None) -> int:
    limit = (_USUAL_GRACE if grace is None else grace) + _BEYOND_GRACE
    deadline = time.monotonic() + limit
    try:
        for line in job_client.follow(job.folder, every=0.5):
            if line is not None and "text" in line and line["stream"] == 2 and line["text"].startswith("muster:"):
                sys.stderr.write(f"{line['text']}\n")
            if time.monotonic() > deadline:
                break
    except job_client.NoAnswer:
        pass  # it has ended already
    if not wait_until_gone(job, max(1.0, deadline - time.monotonic())):
        sys.stderr.write(
            f"muster: job {job.id} has not ended after {limit:g} s; `muster stop --now {job.id}` kills it\n"
        )
        return EXIT_MUSTER
    ended = read_job(job.folder)
    if ended.state is not None and ended.state.stuck:
        hosts = ", ".join(ended.state.stuck)
        sys.stderr.write(f"muster: job {job.id} has ended, but the kernel still holds a process of it on {hosts}\n")
        return EXIT_MUSTER
    sys.stderr.write(f"muster: job {job.id} {how_it_ended(ended)}; nothing of it is left\n")
    return 0

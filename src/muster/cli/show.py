"""`muster show`: the verdict on a job, printed again."""

from __future__ import annotations

import re
import shutil
import sys
import time

from muster.api.arguments import Parser, option
from muster.errors import UsageError
from muster.jobs import job_client
from muster.jobs.job_folders import KeptJob, find, fresh, the_running_one
from muster.jobs.kept_files import entries
from muster.jobs.ps_text import status
from muster.jobs.running_job import running_here
from muster.jobs.show_text import show, show_stacks

EPILOG = """\
examples:
  muster show                       the newest job
  muster show train.py              the job that runs train.py, or its newest one
  muster show 3f9a | less           all of it, with stack traces
  muster show --stacks              where each rank of the running job is now: take stack traces, and let it run

JOB is a job's id, its beginning or its end, its name (--name), its script, or `last`.

Exit code: 0; 2 for a wrong command line; 125 if --stacks got no answer within 30 s.
"""


def main(argv: list[str]) -> int:
    """Print what is known of a job: how it ended or how it stands, why, and when what happened."""
    parser = Parser(
        prog="muster show",
        description="Print the verdict on a job again: first failure, traceback, fix, hangs, lost hosts, attempts.",
        epilog=EPILOG,
    )
    option(parser, "JOB", "a job that `muster ps` lists (default: the newest)", nargs="?")
    option(parser, "--stacks", "take stack traces of all ranks of a running job, and print them; the job keeps running")
    args = parser.parse_args(argv)
    if args.stacks:
        return _print_stacks(the_running_one("muster show --stacks") if args.job is None else find(args.job))
    job = fresh(find("last" if args.job is None else args.job))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    stacks = sorted(name for name in entries(job.folder) if re.fullmatch(r"stacks-\d{1,6}\.txt", name, re.ASCII))
    print("\n".join(show(job, time.time(), width, stacks)))
    return 0


def _print_stacks(job: KeptJob) -> int:
    job = fresh(job)
    state = running_here(job, "muster show --stacks")
    report = job_client.take_stacks(job.folder) if state.world_size else None
    if report is None or not report.stacks:
        raise UsageError(
            f"job {job.id} has no ranks to take stack traces of ({status(job, time.time())})",
            hint="type it again when `muster ps` shows it running",
        )
    print("\n".join(show_stacks(job, state, report)))
    return 0

"""`muster show`: the verdict on a job, printed again."""

from __future__ import annotations

import re
import shutil
import sys
import time

from muster.api.arguments import Parser, option
from muster.jobs.job_folders import find, fresh
from muster.jobs.kept_files import entries
from muster.jobs.show_text import show

EPILOG = """\
examples:
  muster show                       the newest job
  muster show train.py              the job that runs train.py, or its newest one
  muster show 3f9a | less           all of it, with stack traces

JOB is a job's id, its beginning or its end, its name (--name), its script, or `last`.

Exit code: 0; 2 for a wrong command line.
"""


def main(argv: list[str]) -> int:
    """Print what is known of a job: how it ended or how it stands, why, and when what happened."""
    parser = Parser(
        prog="muster show",
        description="Print the verdict on a job again: first failure, traceback, explanation, fix, hangs, timeline.",
        epilog=EPILOG,
    )
    option(parser, "JOB", "a job that `muster ps` lists (default: the newest)", nargs="?")
    args = parser.parse_args(argv)
    job = fresh(find("last" if args.job is None else args.job))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    stacks = sorted(name for name in entries(job.folder) if re.fullmatch(r"stacks-\d{1,6}\.txt", name, re.ASCII))
    print("\n".join(show(job, time.time(), width, stacks)))
    return 0

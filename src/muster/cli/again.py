"""`muster again`: repeats a job."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from muster.api.arguments import Parser, option
from muster.errors import MusterError
from muster.jobs.job_folders import find
from muster.jobs.run_command import RunCommand
from muster.text import names

EPILOG = """\
examples:
  muster again                        the newest job once more
  muster again 3f9a                   another one; `muster ps` lists them
  muster again --without gpu03        on the other hosts of the job
  muster again -- --lr 0.01           with other arguments of the script
  muster again train.py --without b -- --epochs 3

JOB is a job's id, its beginning or its end, its name (--name), its script, or `last`.
The job runs in the same directory with the same environment. Values that look secret, such as tokens, are not
stored; they are those of this shell.

Exit code: that of `muster run`.
"""


def main(argv: list[str]) -> int:
    """Repeat a job and return its exit code."""
    begin = time.time()
    parser = Parser(
        prog="muster again",
        usage="muster again [JOB] [--without HOST] [-- ARGUMENTS OF THE SCRIPT]",
        description="Repeat a job with the same command, hosts, environment and directory.",
        epilog=EPILOG,
    )
    option(parser, "JOB", "a job that `muster ps` lists (default: the newest one)", nargs="?")
    option(parser, "--without HOST", "leave a host out (repeatable)", action="append", default=[])
    at = argv.index("--") if "--" in argv else None
    options = parser.parse_args(argv[:at])
    job = find(options.job or "last")
    command = RunCommand.read(job.folder)
    if command is None:
        raise MusterError(
            f"job {job.id} was not started by `muster run`, or its command was not stored",
            hint="start it as you did before",
        )
    changes = replace(command, without=(*command.without, *options.without))
    if at is not None:
        changes = replace(changes, args=tuple(argv[at + 1 :]))
    unset = changes.enter()
    if unset:
        sys.stderr.write(f"muster: {names(unset)} was set for job {job.id}, but is not set in this shell\n")

    from muster.cli.run import start

    return start(changes, begin)

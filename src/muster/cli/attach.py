"""`muster attach`: the output of a running job, from now on."""

from __future__ import annotations

from muster.api.arguments import Parser, option
from muster.errors import EXIT_MUSTER
from muster.jobs import job_client
from muster.jobs.job_folders import KeptJob, find, short_id, the_running_one
from muster.jobs.ps_text import LEASE
from muster.jobs.running_job import running_here, wait_until_gone
from muster.output.screen import Screen

_LAST_LINES = 20
"""Earlier lines that are shown first."""

_LAST_STATE = 10.0
"""Seconds for a job that has reported its end to write its last state."""

EPILOG = """\
examples:
  muster attach                     the running job
  muster attach train.py            the job that runs train.py

JOB is a job's id, its beginning or its end, its name (--name), its script, or `last`.
Ctrl-C detaches, and the job keeps running. Ranks of a job in the background cannot read the keyboard.

Exit code: that of the job if it ends meanwhile; 0 when you detach; 2 for a wrong command line; 125 if the controller
was killed.
"""


def main(argv: list[str]) -> int:
    """Show what the job shows until it ends or the user detaches."""
    parser = Parser(
        prog="muster attach",
        description="Show the output of a running job, the last lines first. Ctrl-C detaches; the job keeps running.",
        epilog=EPILOG,
    )
    option(parser, "JOB", "a job that `muster ps` lists (default: the running one)", nargs="?")
    args = parser.parse_args(argv)
    job = the_running_one("muster attach") if args.job is None else find(args.job)
    running_here(job, "muster attach")
    screen = Screen()
    try:
        return _show(job, screen)
    except KeyboardInterrupt:
        screen.warning(f"detached. The job keeps running; stop it with `muster stop {short_id(job.id)}`")
        return 0
    finally:
        screen.close()


def _show(job: KeptJob, screen: Screen) -> int:
    for line in job_client.follow(job.folder, last=_LAST_LINES, every=0.5):
        if screen.closed_by_reader.is_set():
            return 141
        if line is None:
            continue
        if "stream" not in line:
            wait_until_gone(job, _LAST_STATE)  # so that the next command finds it ended
            return line["end"]
        screen.repeat(line["stream"], line["text"], line["end"])
    screen.warning(f"the controller of job {job.id} was killed; {LEASE}")
    return EXIT_MUSTER

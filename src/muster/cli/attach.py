"""`muster attach`: the screen of a running job, from now on."""

from __future__ import annotations

from muster.api.arguments import Parser, option
from muster.errors import EXIT_MUSTER
from muster.jobs import job_client
from muster.jobs.job_folders import KeptJob, find
from muster.jobs.ps_text import LEASE
from muster.jobs.running_job import running_here, wait_until_gone
from muster.output.screen import Screen

_LAST_LINES = 20
"""Lines that were shown before, to know where one is."""

_LAST_STATE = 10.0
"""Seconds for a job that has told its end to write it down too."""

EPILOG = """\
examples:
  muster attach last                the newest job
  muster attach train.py            the job that runs train.py

JOB is a job's id, its beginning or its end, the name of its script, or `last`. Ctrl-C detaches; the job goes on.

Exit code: that of the job if it ends meanwhile; 0 when you detach; 2 for a wrong command line; 125 if its controller
was killed.
"""


def main(argv: list[str]) -> int:
    """Show what the job shows until it ends or the user detaches."""
    parser = Parser(
        prog="muster attach",
        description="Show the screen of a running job, the last lines first. Ctrl-C detaches, and the job goes on.",
        epilog=EPILOG,
    )
    option(parser, "JOB", "a job that `muster ps` lists")
    args = parser.parse_args(argv)
    job = find(args.job)
    running_here(job, "muster attach")
    screen = Screen()
    try:
        return _show(job, screen)
    except KeyboardInterrupt:
        screen.warning(f"detached; job {job.id} goes on (`muster attach {job.id}`, `muster stop {job.id}`)")
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
            wait_until_gone(job, _LAST_STATE)  # so that who looks next finds it ended
            return line["end"]
        screen.repeat(line["stream"], line["text"], line["end"])
    screen.warning(f"the controller of job {job.id} was killed; {LEASE}")
    return EXIT_MUSTER

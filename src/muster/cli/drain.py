"""`muster drain`: move the ranks of a job away from a host that is about to go away."""

from __future__ import annotations

import sys
import time

from muster.api.arguments import Parser, option, seconds
from muster.errors import EXIT_MUSTER
from muster.jobs import job_client
from muster.jobs.job_folders import KeptJob, find, fresh, read_job
from muster.jobs.ps_text import how_it_ended
from muster.jobs.running_job import running_here
from muster.jobs.state import JobState
from muster.text import duration, printable

_WITHOUT_TIME = 60.0
"""Seconds that ranks have to save without --in."""

_BEYOND = 60.0
"""Seconds beyond that for the other hosts to take over."""

_POLL = 0.2
"""Seconds between two looks at the job."""


EPILOG = """\
examples:
  muster drain train.py gpu07             ranks save and end within 60 s, then a spare host takes over
  muster drain 3f9a gpu07 --in 2m         gpu07 goes away in two minutes
  muster drain 3f9a gpu07 && ssh gpu07 sudo reboot

All ranks of the job get SIGUSR1 (--drain-signal), and `muster.init().deadline` says how long they have to save. When
all have ended, or shortly before the time is over, the job continues on a spare host (--spares) or on fewer hosts
(--min-hosts). A job with neither ends after its ranks have saved; that needs --in.

JOB is a job's id, its beginning or its end, its name (--name), its script, or `last`.

Exit code: 0 when no rank of the job runs on the host; 2 for a wrong command line, a host that is not in the job, or one
that cannot be replaced; 125 if its ranks still run there.
"""


def main(argv: list[str]) -> int:
    """Drain a host of a job, and wait until no rank runs there."""
    parser = Parser(
        prog="muster drain",
        description="Let all ranks of a job save, and move those on HOST to another host.",
        epilog=EPILOG,
    )
    option(parser, "JOB", "a job that `muster ps` lists")
    option(parser, "HOST", "one of its hosts, as `muster top` shows it")
    about = "when HOST goes away: 30s, 2m (default: when the ranks have saved, within 60s)"
    option(parser, "--in DURATION", about, dest="left", type=seconds)
    args = parser.parse_args(argv)
    job = find(args.job)
    had_ranks = not _is_free(running_here(job, "muster drain"), args.host)
    begin = time.monotonic()
    said = job_client.drain(job.folder, args.host, args.left)
    sys.stderr.write(f"muster: {printable(said)}\n")
    limit = (_WITHOUT_TIME if args.left is None else args.left) + _BEYOND
    return _wait(job, args.host, begin, limit, had_ranks=had_ranks)


def _wait(job: KeptJob, host: str, begin: float, limit: float, *, had_ranks: bool) -> int:
    """Wait until no rank runs on the host and the others have started again."""
    while True:
        now = fresh(read_job(job.folder))
        waited = time.monotonic() - begin
        if not now.may_run:
            sys.stderr.write(f"muster: job {job.id} {how_it_ended(now)}\n")
            return 0
        if now.state is not None and _is_free(now.state, host):
            if had_ranks:
                where = ", ".join(dict.fromkeys(rank.host for rank in now.state.ranks))
                took = duration(waited)
                sys.stderr.write(f"muster: no rank runs on {host} after {took}; they are on {printable(where)}\n")
            return 0
        if waited > limit and now.state is not None and _has_ended(now.state, host):
            said = f"no rank runs on {host}, but the job has not continued yet; `muster top` shows what it waits for"
            sys.stderr.write(f"muster: {said}\n")
            return 0
        if waited > limit:
            sys.stderr.write(f"muster: ranks still run on {host} after {duration(waited)}; `muster top` shows them\n")
            return EXIT_MUSTER
        time.sleep(_POLL)


def _is_free(state: JobState, host: str) -> bool:
    return all(rank.host != host for rank in state.ranks)


def _has_ended(state: JobState, host: str) -> bool:
    return all(rank.exit_code is not None for rank in state.ranks if rank.host == host)

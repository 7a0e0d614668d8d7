"""`muster ps`: the jobs of this user, and what became of them."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from typing import Any

from muster.api.arguments import Parser, has_unit, option, seconds
from muster.errors import EXIT_MUSTER, UsageError
from muster.jobs.job_folders import KeptJob, fresh, job_folders, read_job, running_jobs
from muster.jobs.prune import last_written, prune
from muster.jobs.ps_text import places, status, table
from muster.text import age, count, printable, size_text

_RECENT = 10
"""Jobs that have ended which are shown without --all."""

_LONG_AGO = 30 * 86400.0

EPILOG = f"""\
examples:
  muster ps                         what runs, and the {_RECENT} jobs that ended last
  muster ps --all                   every job whose folder is kept
  muster ps --json | jq .           all that is known, for programs
  muster ps --prune --older 90d     remove the folders of jobs that ended over 90 days ago

Folders of jobs (plan, logs, last state) are kept in ~/.local/state/muster/jobs until --prune is asked for.

STATE: running, waiting for hosts, preparing, stopping; done, failed 3 (its exit code), stopped (by a signal or
`muster stop`), controller died (killed, or the machine went down: its agents then ended all ranks within 10 s),
running on NAME (another machine with the same home folder), silent on NAME (it writes nothing any more).

Exit code: 0; 2 for a wrong command line; 125 if --prune could not remove a folder.
"""


def main(argv: list[str]) -> int:
    """List the jobs, or remove the folders of old ones."""
    parser = Parser(
        prog="muster ps", description="List your jobs: those that run, and how others ended.", epilog=EPILOG
    )
    option(parser, "--all", "also those that ended long ago")
    option(parser, "--json", "as JSON: a list of all that is known of each job")
    option(parser, "--prune", "remove the folders of jobs that ended over 30 days ago")
    option(parser, "--older DURATION", "for --prune: another age: 12h, 90d or 8w (default: 30d)", type=_age)
    args = parser.parse_args(argv)
    if args.older is not None and not args.prune:
        raise UsageError(
            "--older says what --prune removes, and that is not asked for", hint="write `--prune --older 90d`"
        )
    if args.prune:
        return _prune(_LONG_AGO if args.older is None else args.older)
    jobs, left_out = _chosen(everything=args.all)
    if args.json:
        print(json.dumps([_as_data(job) for job in jobs], indent=1))
        return 0
    _print_table(jobs)
    if left_out:
        sys.stderr.write(f"\n{count(left_out, 'older job')}: `muster ps --all`\n")
    elif not jobs:
        sys.stderr.write("no jobs yet: `muster run train.py` starts one\n")
    return 0


def _chosen(*, everything: bool) -> tuple[list[KeptJob], int]:
    """The jobs to show, the newest first, and how many are left out."""
    folders = job_folders()
    if everything:
        return [fresh(read_job(folder)) for folder in folders], 0
    running = {job.folder: fresh(job) for job in running_jobs()}
    ended = [folder for folder in folders if folder not in running]
    shown = [
        running.get(folder) or read_job(folder) for folder in folders if folder in running or folder in ended[:_RECENT]
    ]
    return shown, len(ended) - len(ended[:_RECENT])


def _print_table(jobs: list[KeptJob]) -> None:
    if not jobs:
        return
    now = time.time()
    rows = [("JOB", "STATE", "AGE", "RANKS@HOSTS", "COMMAND")]
    for job in jobs:
        state = job.state
        begin = state.begin if state is not None else last_written(job)
        where, command = (places(state), printable(state.command)) if state is not None else ("?", "?")
        rows.append((job.id, status(job, now), age(now - begin), where, command))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(table(rows, width)))


def _as_data(job: KeptJob) -> dict[str, Any]:
    known = job.state.cut(since=float("inf"), stacks=False).as_data() if job.state is not None else {"id": job.id}
    return {**known, "status": status(job, time.time()), "folder": str(job.folder)}


def _prune(older: float) -> int:
    done = prune(older)
    jobs = count(len(done.removed), "job")
    for job in done.removed:
        print(job)
    if done.removed:
        sys.stderr.write(f"removed the folders of {jobs} that ended over {age(older)} ago: {size_text(done.size)}\n")
    else:
        sys.stderr.write(f"nothing is removed: no job that can go ended over {age(older)} ago\n")
    if done.with_code:
        sys.stderr.write(
            "kept, because ranks worked there (--sync) and may have left files; remove by hand what you do not need:\n"
            + "".join(f"  {folder}\n" for folder in done.with_code)
        )
    for sentence in done.failed:
        sys.stderr.write(f"{sentence}\n")
    return EXIT_MUSTER if done.failed else 0


def _age(text: str) -> float:
    """A duration with a unit: a plain number, which would be seconds, is too easily meant as days."""
    if not has_unit(text):
        raise argparse.ArgumentTypeError(f"`{text}` has no unit; type one, such as 12h, 90d or 8w")
    return seconds(text)

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
from muster.jobs.hosts_text import places
from muster.jobs.job_folders import KeptJob, fresh, job_folders, read_job, running_jobs
from muster.jobs.prune import last_written, prune
from muster.jobs.ps_text import reason, status, table
from muster.text import age, count, printable, size_text

_RECENT = 10
"""Ended jobs that are shown without --all."""

_LONG_AGO = 30 * 86400.0
"""Seconds since the end of a job after which --prune removes it."""

EPILOG = f"""\
examples:
  muster ps                         running jobs, and the {_RECENT} that ended last
  muster ps --all                   every job whose directory exists
  muster ps --json | jq .           everything known about each job, for programs
  muster ps --prune --older 90d     remove the directories of jobs that ended over 90 days ago

RANKS@HOSTS also counts spare hosts and those that are lost, bad (failed hardware), draining (about to go away) or
returning (they answer again and are being checked).
Hosts that are kept ready for the next run (`muster keep`) have a section of their own.
A line below a job says why it failed, hangs or is slow; `muster show JOB` prints all of it.
Job directories (plan, logs, last state) stay in ~/.local/state/muster/jobs until you run --prune.

STATE
  waiting for hosts, preparing, running, stopping
  hung 31 s          no rank has made progress for this long
  slow               a straggler slows the job down
  recovering         an attempt has ended, and Muster is about to start the next one
  done               exit code 0
  failed 3           exit code 3
  stopped            by a signal, Ctrl-C or `muster stop`
  requeued           its scheduler will run it again (`muster submit --requeue`)
  controller died    it was killed, or its machine went down; its agents stop all ranks within 20 s
  running on NAME    on another machine with the same home directory
  silent on NAME     the same, but it has written nothing for 15 s
  running on NAME 5 min ago
                     the last known state of a job whose controller is on NAME, which does not answer now
  unknown            it has left no state.json
  damaged            its state.json cannot be read, or belongs to another user

Exit code: 0; 2 for a wrong command line; 125 if --prune could not remove a directory.
"""


def main(argv: list[str]) -> int:
    """List the jobs, or remove the directories of old ones."""
    parser = Parser(prog="muster ps", description="List running jobs, and how others ended.", epilog=EPILOG)
    option(parser, "--all", "list all jobs, also those that ended long ago")
    option(parser, "--json", "print everything known about each job as a JSON list")
    option(parser, "--prune", "remove the directories of jobs that ended over 30 days ago")
    option(parser, "--older DURATION", "with --prune: another age, such as 12h, 90d or 8w (default: 30d)", type=_age)
    args = parser.parse_args(argv)
    if args.older is not None and not args.prune:
        raise UsageError("--older works only with --prune", hint="type `muster ps --prune --older 90d`")
    if args.prune:
        return _prune(_LONG_AGO if args.older is None else args.older)
    jobs, left_out = _chosen(everything=args.all)
    if args.json:
        print(json.dumps([_as_data(job) for job in jobs], indent=1))
        return 0
    _print_table(jobs)
    _print_kept()
    if left_out:
        sys.stderr.write(f"\n{count(left_out, 'older job')} not listed: `muster ps --all`\n")
    elif not jobs:
        sys.stderr.write("no jobs yet; `muster run train.py` starts one\n")
    return 0


def _chosen(*, everything: bool) -> tuple[list[KeptJob], int]:
    """The jobs to show, running ones first, then the newest first; and how many are left out."""
    folders = job_folders()
    if everything:
        running_jobs()  # asks the hosts of jobs that run elsewhere
        return sorted((fresh(read_job(folder)) for folder in folders), key=lambda job: not job.may_run), 0
    running = {job.folder: fresh(job) for job in running_jobs()}
    ended = [folder for folder in folders if folder not in running]
    return [*running.values(), *map(read_job, ended[:_RECENT])], len(ended) - len(ended[:_RECENT])


def _print_table(jobs: list[KeptJob]) -> None:
    if not jobs:
        return
    now = time.time()
    rows: list[tuple[str, ...]] = [("JOB", "STATE", "AGE", "RANKS@HOSTS", "COMMAND")]
    for job in jobs:
        state = job.state
        begin = state.begin if state is not None else last_written(job)
        where, command = (places(state), printable(state.command)) if state is not None else ("?", "?")
        rows.append((job.id, status(job, now), age(now - begin), where, command))
        why = reason(job)
        if why:
            rows.append((why,))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(table(rows, width)), flush=True)


def _print_kept() -> None:
    """Print the hosts that are kept ready for the next run, if there are any."""
    from muster.controller.keep.keep_client import kept_hosts
    from muster.controller.keep.kept_text import kept_rows

    hosts = kept_hosts()
    if hosts:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print("\n".join(["", *table(kept_rows(hosts, time.time()), width)]), flush=True)


def _as_data(job: KeptJob) -> dict[str, Any]:
    known = job.state.cut(since=float("inf"), stacks=False).as_data() if job.state is not None else {"id": job.id}
    return {**known, "status": status(job, time.time()), "reason": reason(job), "folder": str(job.folder)}


def _prune(older: float) -> int:
    done = prune(older)
    jobs = count(len(done.removed), "job")
    for job in done.removed:
        print(job)
    if done.removed:
        sys.stderr.write(
            f"removed the directories of {jobs} that ended over {age(older)} ago: {size_text(done.size)}\n"
        )
    else:
        sys.stderr.write(f"nothing to remove: no job ended over {age(older)} ago\n")
    if done.with_code:
        sys.stderr.write(
            "kept, because ranks worked there (--sync) and may have left files; remove what you do not need:\n"
            + "".join(f"  {folder}\n" for folder in done.with_code)
        )
    for sentence in done.failed:
        sys.stderr.write(f"{printable(sentence)}\n")
    return EXIT_MUSTER if done.failed else 0


def _age(text: str) -> float:
    """A duration with a unit, because a plain number could be meant as seconds or as days."""
    if not has_unit(text):
        raise argparse.ArgumentTypeError(f"`{text}` has no unit; type one, such as 12h, 90d or 8w")
    return seconds(text)

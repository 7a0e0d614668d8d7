"""`muster logs`: what the ranks of a job wrote, while it runs or afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from muster.api.arguments import Parser, natural, option
from muster.errors import UsageError
from muster.jobs.job_folders import KeptJob, find, fresh, read_job
from muster.jobs.log_reader import Merged, RankLine, Tail, attempt_folder, attempts, rank_log
from muster.jobs.ps_text import SILENT
from muster.output.lines import as_bytes
from muster.output.screen import rank_color, rank_label, wants_color

_BETWEEN_LOOKS = 0.2
"""Seconds between two looks for new lines."""

EPILOG = """\
examples:
  muster logs last                  all ranks of the newest job, in the order the lines came
  muster logs train.py -f           of the job that runs train.py, until it ends
  muster logs 3f9a --rank 3         what rank 3 wrote, byte for byte
  muster logs 3f9a --attempt 0      before the first restart

JOB is a job's id, its beginning or its end, the name of its script, or `last`.

Exit code: 0; 2 for a wrong command line.
"""


def main(argv: list[str]) -> int:
    """Print the logs of a job."""
    parser = Parser(prog="muster logs", description="Show what the ranks of a job wrote.", epilog=EPILOG)
    option(parser, "JOB", "a job that `muster ps` lists")
    option(parser, "-f --follow", "go on until the job ends")
    option(parser, "--rank R", "this rank alone, exactly as it wrote it", type=natural)
    option(parser, "--attempt N", "0 is the first (default: the last)", type=natural)
    args = parser.parse_args(argv)
    job = find(args.job)
    _check(job, args.attempt, args.rank)
    reader = _Reader(job, args.attempt, args.rank, follow=args.follow and job.may_run)
    reader.read()
    return 0


def _check(job: KeptJob, attempt: int | None, rank: int | None) -> None:
    there = attempts(job.folder)
    if attempt is not None and attempt not in there and not (job.may_run and attempt > max(there, default=-1)):
        have = "has no logs yet" if not there else f"has attempts {', '.join(map(str, there))}"
        raise UsageError(f"--attempt {attempt}: job {job.id} {have}", hint="leave it out for the last attempt")
    size = job.state.world_size if job.state is not None else 0
    if rank is not None and size and rank >= size:
        have = "only rank 0" if size == 1 else f"ranks 0 to {size - 1}"
        raise UsageError(f"--rank {rank}: job {job.id} has {have}", hint="try `--rank 0`")


class _Reader:
    """Prints the logs of a job as they are and as they grow."""

    def __init__(self, job: KeptJob, attempt: int | None, rank: int | None, *, follow: bool) -> None:
        self._job = job
        self._wanted = attempt
        self._rank = rank
        self._follow = follow
        self._terminal = sys.stdout.isatty()
        self._color = wants_color(self._terminal)
        self._unfinished = False
        """The last line on the terminal is one that renews itself."""

    def read(self) -> None:
        """All there is; when following, until the job has ended."""
        attempt = self._newest() if self._wanted is None else self._wanted
        while True:
            self._read_attempt(attempt)
            newest = self._newest()
            if self._wanted is not None or newest <= attempt:
                return
            attempt = attempt + 1 if self._follow else newest
            sys.stderr.write(f"muster: attempt {attempt}\n")

    def _newest(self) -> int:
        return max(attempts(self._job.folder), default=0)

    def _read_attempt(self, attempt: int) -> None:
        tail = None if self._rank is None else Tail(rank_log(self._job.folder, attempt, self._rank))
        merged = Merged(attempt_folder(self._job.folder, attempt))
        looked = time.monotonic()
        while self._follow:
            # Looked at before reading, so that what came just before the end is read.
            over = self._newest() > attempt or (time.monotonic() - looked > 1.0 and self._has_ended())
            if time.monotonic() - looked > 1.0:
                looked = time.monotonic()
            self._show(merged.new()) if tail is None else _copy(tail)
            sys.stdout.flush()
            if over:
                break
            time.sleep(_BETWEEN_LOOKS)
        self._show(merged.rest()) if tail is None else _copy(tail)
        if self._unfinished:
            sys.stdout.buffer.write(b"\n")
        sys.stdout.flush()

    def _has_ended(self) -> bool:
        self._job = read_job(self._job.folder)
        state = self._job.state
        silent = self._job.life == "elsewhere" and state is not None and time.time() - state.now > SILENT
        if silent and state is not None:
            sys.stderr.write(f"muster: nothing has come from {state.host} for {SILENT:g} s\n")
        if self._job.life == "died":
            sys.stderr.write("muster: the controller of this job was killed\n")
        return silent or not self._job.may_run

    def _hosts(self) -> dict[int, str]:
        """Where each rank runs; a job that has just begun knows it before it has written it down."""
        if self._job.may_run and (self._job.state is None or not self._job.state.ranks):
            self._job = fresh(read_job(self._job.folder))
        return {rank.rank: rank.host for rank in self._job.state.ranks} if self._job.state is not None else {}

    def _show(self, lines: Iterable[RankLine]) -> None:
        hosts = self._hosts()
        width = len(str(max(hosts, default=0)))
        for rank, line in lines:
            if line.end == "\r" and not self._follow:
                continue  # a state of a progress bar, which the next one has replaced
            label = rank_label(hosts.get(rank, "rank"), rank, width)
            if self._color:
                label = f"\x1b[{rank_color(rank)}m{label}\x1b[0m"
            clear = "\r\x1b[K" if self._unfinished else ""
            self._unfinished = line.end == "\r" and self._terminal
            sys.stdout.buffer.write(as_bytes(f"{clear}{label} {line.text}{'' if self._unfinished else chr(10)}"))


def _copy(tail: Tail) -> None:
    for data in tail.new():
        sys.stdout.buffer.write(data)

"""`muster logs`: what the ranks of a job wrote, while it runs or afterwards."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from muster.api.arguments import Parser, has_unit, natural, option, rank_set, seconds
from muster.errors import UsageError
from muster.jobs.job_folders import KeptJob, find, fresh, read_job, running_or_last, short_id
from muster.jobs.log_reader import Merged, RankLine, Tail, attempt_folder, attempts, pieces_before_last, rank_log
from muster.jobs.ps_text import SILENT, moment
from muster.jobs.show_text import verdict
from muster.jobs.state import AttemptState
from muster.output.colors import rank_color, wants_color
from muster.output.escapes import for_terminal
from muster.output.lines import as_bytes, without_rank_tag
from muster.output.screen import rank_label
from muster.text import printable

_BETWEEN_LOOKS = 0.2
"""Seconds between two looks for new lines."""

EPILOG = """\
examples:
  muster logs                       the running job, or the newest: all ranks, in the order the lines came
  muster logs train.py -f           follow the job that runs train.py until it ends
  muster logs -n 100                the last 100 lines
  muster logs --since 5m -t         the last 5 minutes, with timestamps
  muster logs --since 14:30 --grep 'loss|nan'
  muster logs 3f9a --rank 3         what rank 3 wrote; in a file or pipe byte for byte
  muster logs 3f9a --rank 0,4-7     the lines of these ranks
  muster logs 3f9a --attempt 0      what was written before the first restart

JOB is a job's id, its beginning or its end, its name (--name), its script, or `last`.
A terminal gets the colors of the ranks and no other escape sequences; a file or pipe gets every byte.
The verdict on the job follows on stderr, so `muster logs > file` keeps only the lines of the ranks. With --rank it is
one line; with --grep there is none.

Exit code: 0; 2 for a wrong command line.
"""


@dataclass(frozen=True)
class _Choice:
    """Which lines are shown, and how."""

    ranks: frozenset[int] | None
    last: int | None
    since: float | None
    pattern: re.Pattern[str] | None
    timestamps: bool
    terminal: bool
    """Whether a terminal shows them: it gets colors, but no other escape sequences."""

    @property
    def only(self) -> int | None:
        """The rank, if it is only one: its lines need no label."""
        return next(iter(self.ranks)) if self.ranks is not None and len(self.ranks) == 1 else None

    @property
    def copied(self) -> int | None:
        """The rank whose log is copied as it is, if it is."""
        chosen = self.timestamps or self.pattern is not None or (self.last, self.since) != (None, None)
        return None if chosen or self.terminal else self.only

    def takes(self, line: RankLine) -> bool:
        """Whether a line is shown."""
        if self.ranks is not None and line.rank not in self.ranks:
            return False
        return self.pattern is None or self.pattern.search(line.line.text) is not None


def main(argv: list[str]) -> int:
    """Print the logs of a job."""
    parser = Parser(prog="muster logs", description="Show what the ranks of a job wrote.", epilog=EPILOG)
    option(parser, "JOB", "a job that `muster ps` lists (default: the running one, or the newest)", nargs="?")
    option(parser, "-f --follow", "keep printing new lines until the job ends")
    option(parser, "-n --lines N", "only the last N lines", type=natural)
    option(parser, "--since TIME", "only lines since then: 5m, 14:30 or '2026-11-16 14:30'", type=_since)
    option(parser, "--grep PATTERN", "only lines that match this regular expression", type=_pattern)
    option(parser, "-t --timestamps", "print before each line when it arrived")
    option(parser, "--rank RANKS", "only these ranks, such as 3 or 0,4-7; one alone without labels", type=rank_set)
    option(parser, "--attempt N", "0 is the first (default: the last)", type=natural)
    args = parser.parse_args(argv)
    job = running_or_last("muster logs") if args.job is None else find(args.job)
    _check(job, args.attempt, args.rank)
    lines = None if args.lines is None else min(args.lines, sys.maxsize)
    choice = _Choice(args.rank, lines, args.since, args.grep, args.timestamps, sys.stdout.isatty())
    reader = _Reader(job, args.attempt, choice, follow=args.follow and job.may_run)
    reader.read()
    if choice.pattern is None:
        _print_verdict(reader.job(), brief=choice.ranks is not None)
    return 0


def _since(text: str) -> float:
    """A duration before now, a time of today or a date, as seconds since 1970."""
    try:
        if has_unit(text) and not re.search(r"[:-]", text):
            return time.time() - seconds(text)
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
            today = datetime.now()
            clock = datetime.strptime(text, "%H:%M:%S" if text.count(":") == 2 else "%H:%M").time()
            meant = datetime.combine(today.date(), clock)
            return (meant if meant <= today else meant - timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(
            f"must be a duration such as 5m or a time such as 14:30 or '2026-11-16 14:30', got `{printable(text)}`"
        ) from None


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"invalid regular expression `{printable(text)}` ({error})") from None


def _check(job: KeptJob, attempt: int | None, ranks: frozenset[int] | None) -> None:
    there = attempts(job.folder)
    if attempt is not None and attempt not in there and not (job.may_run and attempt > max(there, default=-1)):
        have = "has no logs yet" if not there else f"has attempts {', '.join(map(str, there))}"
        raise UsageError(f"--attempt {attempt}: job {job.id} {have}", hint="leave it out for the last attempt")
    size = job.state.world_size if job.state is not None else 0
    known = None if attempt is None else _attempt_state(job, attempt)
    size = known.world_size if known is not None else size
    if ranks and size and max(ranks) >= size:
        of = f"attempt {attempt} of job {job.id}" if known is not None else f"job {job.id}"
        have = "only rank 0" if size == 1 else f"ranks 0 to {size - 1}"
        raise UsageError(f"--rank {max(ranks)}: {of} has {have}", hint="try `--rank 0`")


def _attempt_state(job: KeptJob, attempt: int) -> AttemptState | None:
    """What is known of an attempt: it may have had other hosts and another number of ranks than the last one."""
    attempts = job.state.attempts if job.state is not None else ()
    return next((known for known in attempts if known.number == attempt), None)


def _print_verdict(job: KeptJob, *, brief: bool) -> None:
    """How the job ended, or what is wrong with one that runs; on stderr, apart from what the ranks wrote."""
    state = job.state
    if state is not None and job.may_run and state.hung_since is None and not state.slow:
        return
    lines = verdict(job, time.time())
    if len(lines) > 1:
        lines = [*(lines[:1] if brief else lines), f"`muster show {short_id(job.id)}` prints more"]
    sys.stderr.writelines(f"{line}\n" if line.startswith("  ") else f"muster: {line}\n" for line in lines)


class _Reader:
    """Prints the logs of a job as they are and as they grow."""

    def __init__(self, job: KeptJob, attempt: int | None, choice: _Choice, *, follow: bool) -> None:
        self._job = job
        self._wanted = attempt
        self._attempt = attempt or 0
        """The one that is being read."""
        self._choice = choice
        self._follow = follow
        self._color = wants_color(choice.terminal)
        self._has_times = True
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

    def job(self) -> KeptJob:
        """The job as it is now."""
        return fresh(read_job(self._job.folder))

    def _newest(self) -> int:
        return max(attempts(self._job.folder), default=0)

    def _read_attempt(self, attempt: int) -> None:
        choice, self._attempt = self._choice, attempt
        plain = None if choice.copied is None else Tail(rank_log(self._job.folder, attempt, choice.copied))
        folder = attempt_folder(self._job.folder, attempt)
        skips = choice.last is not None and choice.pattern is None
        skip = pieces_before_last(folder, choice.last or 0, choice.ranks) if skips else 0
        merged = Merged(folder, since=choice.since, skip=skip)
        looked = time.monotonic()
        is_first = choice.last is not None
        while self._follow:
            # Looked at before reading, so that what came just before the end is read.
            over = self._newest() > attempt or (time.monotonic() - looked > 1.0 and self._has_ended())
            if time.monotonic() - looked > 1.0:
                looked = time.monotonic()
            self._show(merged.new(), last=is_first) if plain is None else _copy(plain)
            is_first = False
            sys.stdout.flush()
            if over:
                break
            time.sleep(_BETWEEN_LOOKS)
        self._show(merged.rest(), last=is_first) if plain is None else _copy(plain)
        if self._unfinished:
            sys.stdout.buffer.write(b"\n")
            self._unfinished = False
        sys.stdout.flush()

    def _has_ended(self) -> bool:
        self._job = read_job(self._job.folder)
        state = self._job.state
        silent = self._job.life == "elsewhere" and state is not None and time.time() - state.now > SILENT
        if silent and state is not None:
            sys.stderr.write(f"muster: {printable(state.host)} has written nothing for {SILENT:g} s\n")
        return silent or not self._job.may_run

    def _hosts(self) -> dict[int, str]:
        """Where each rank of this attempt runs; an attempt that has just begun knows it before it has written it."""
        state = self._job.state
        if self._job.may_run and (state is None or not state.ranks or state.attempt < self._attempt):
            self._job = fresh(read_job(self._job.folder))
            state = self._job.state
        known = _attempt_state(self._job, self._attempt)
        if known is not None and known.slots:
            return known.host_by_rank()
        return {rank.rank: rank.host for rank in state.ranks} if state is not None else {}

    def _show(self, lines: Iterable[RankLine], *, last: bool) -> None:
        """Print the lines that were chosen; with `last` only the last ones."""
        chosen = (line for line in lines if self._choice.takes(line))
        if not self._follow:
            chosen = (line for line in chosen if line.line.end != "\r")  # the next state of the bar has replaced it
        hosts = self._hosts()
        width = len(str(max(hosts, default=0)))
        for line in deque(chosen, maxlen=self._choice.last) if last else chosen:
            self._print(line, hosts, width)

    def _print(self, shown: RankLine, hosts: dict[int, str], width: int) -> None:
        rank, line, when = shown
        label = rank_label(printable(hosts.get(rank, "rank")), rank, width)
        if self._color:
            label = f"\x1b[{rank_color(rank)}m{label}\x1b[0m"
        is_labeled = self._choice.only is None
        text = without_rank_tag(line.text, rank) if is_labeled else line.text
        text = for_terminal(text) if self._choice.terminal else text
        label = f"{label} " if is_labeled else ""
        if self._choice.timestamps:
            label = f"{self._timestamp(when)} {label}"
        clear = "\r\x1b[K" if self._unfinished else ""
        self._unfinished = line.end == "\r" and self._choice.terminal
        sys.stdout.buffer.write(as_bytes(f"{clear}{label}{text}{'' if self._unfinished else chr(10)}"))

    def _timestamp(self, when: float | None) -> str:
        if when is None and self._has_times:
            self._has_times = False
            sys.stderr.write("muster: some lines have no timestamp: their time was not stored\n")
        return f"{'-':<23}" if when is None else f"{moment(when, '%Y-%m-%d %H:%M:%S')}.{int(when * 1000) % 1000:03d}"


def _copy(tail: Tail) -> None:
    for data in tail.new():
        sys.stdout.buffer.write(data)

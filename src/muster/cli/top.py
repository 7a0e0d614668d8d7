"""`muster top`: a job live in the terminal."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from muster.api.arguments import Parser, option
from muster.jobs.job_folders import KeptJob, find, fresh, read_job, the_running_one
from muster.jobs.ps_text import how_it_ended
from muster.jobs.top_view import frame
from muster.output.colors import wants_color

_BETWEEN_FRAMES = 1.0
_BETWEEN_LOOKS = 0.1
"""Seconds between two checks of the keyboard and the size of the terminal."""

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"

EPILOG = """\
examples:
  muster top                        the running job
  muster top train.py               the job that runs train.py
  muster top last --once            one frame of the newest job, for pipes and notes

JOB is a job's id, its beginning or its end, its name (--name), its script, or `last`.
q or Ctrl-C quits; the job keeps running.

WAITS is the recent share of the time in which a rank waited for others: the rank that waits least is the slowest.
CPU counts CPUs: 1.00 is one full CPU. NO_COLOR=1 disables colors.
USE says what a host is for: it runs ranks, or it is a spare (--spares). The last lines report the last recovery.

Exit code: 0; 2 for a wrong command line.
"""


def main(argv: list[str]) -> int:
    """Show a job until the user quits or it ends."""
    parser = Parser(
        prog="muster top",
        description="Show a job live: its hosts and ranks, their speed, what they use, and who waits for whom.",
        epilog=EPILOG,
    )
    option(parser, "JOB", "a job that `muster ps` lists (default: the running one)", nargs="?")
    option(parser, "--once", "print one frame and exit")
    args = parser.parse_args(argv)
    job = find(args.job) if args.job is not None else the_running_one("muster top")
    if args.once or not job.may_run or not sys.stdout.isatty():
        print("\n".join(_frame(fresh(job), height=1 << 30)))
        return 0
    job = _watch(job)
    if not job.may_run:
        print(f"job {job.id} {how_it_ended(job)}")
    return 0


def _frame(job: KeptJob, height: int | None = None) -> list[str]:
    size = shutil.get_terminal_size()
    color = wants_color(sys.stdout.isatty())
    return frame(job, width=size.columns, height=height or size.lines, now=time.time(), color=color)


def _watch(job: KeptJob) -> KeptJob:
    """Draw the job until it has ended or the user quits."""
    with _terminal() as quits:
        drawn = None
        due = 0.0
        try:
            while job.may_run and not quits():
                now = time.monotonic()
                if now >= due:
                    job, due, drawn = fresh(read_job(job.folder)), now + _BETWEEN_FRAMES, None
                if drawn != shutil.get_terminal_size():
                    drawn = shutil.get_terminal_size()
                    _draw(_frame(job))
        except KeyboardInterrupt:
            pass
    return job


def _draw(lines: list[str]) -> None:
    # One write, and each line cleared behind its end: no flicker, and nothing left of a longer line.
    sys.stdout.write("\x1b[H" + "\x1b[K\n".join(lines) + "\x1b[K\x1b[J")
    sys.stdout.flush()


@contextmanager
def _terminal() -> Generator[Callable[[], bool]]:
    """The whole terminal, restored however we leave; yields what waits a moment and returns whether q was pressed."""
    keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = None if keyboard is None else termios.tcgetattr(keyboard)

    def enter() -> None:
        if keyboard is not None:
            tty.setcbreak(keyboard, termios.TCSANOW)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()

    def leave() -> None:
        try:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
            if keyboard is not None and before is not None:
                termios.tcsetattr(keyboard, termios.TCSANOW, before)
        except (OSError, termios.error):
            pass  # the terminal is gone

    def on_suspend(number: int, at: FrameType | None) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        enter()

    def on_end(number: int, at: FrameType | None) -> None:
        sys.exit(128 + number)

    def quits() -> bool:
        if keyboard is None:
            time.sleep(_BETWEEN_LOOKS)
            return False
        if not select.select([keyboard], [], [], _BETWEEN_LOOKS)[0]:
            return False
        typed = os.read(keyboard, 64)
        return not typed or any(key in typed for key in (b"q", b"Q", b"\x03", b"\x04"))

    signal.signal(signal.SIGTSTP, on_suspend)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_end)
    enter()
    try:
        yield quits
    finally:
        leave()

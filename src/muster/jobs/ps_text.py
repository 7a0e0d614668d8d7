"""A job in a few words: the columns of `muster ps`, and how a job ended. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from muster.jobs.job_folders import KeptJob
from muster.jobs.state import JobState
from muster.text import cut, printable

SILENT = 15.0
"""Seconds without a new state after which a job on another machine is called silent; it writes one every 3 s."""

LEASE = "its agents stop all ranks within 10 s"
"""What becomes of the ranks of a controller that was killed."""

REQUEUE = "requeue"
"""What stopped a job that its scheduler will run again."""

_DURATION = re.compile(r" for \d+ s\b")
"""How long a hang had lasted when it was reported; it has lasted longer since."""

_PHASES = {"connecting": "waiting for hosts", "preparing": "preparing", "running": "running", "stopping": "stopping"}


def status(job: KeptJob, now: float) -> str:
    """What a job does, or how it ended: `running`, `hung 31 s`, `slow`, `done`, `failed 3`, `stopped`, …"""
    state = job.state
    if state is None:
        return "damaged" if job.damage else "unknown"
    if job.life == "died":
        return "controller died"
    if job.life == "elsewhere":
        silent = now - (state.now if job.copied is None else job.copied) > SILENT
        if job.copied is not None and silent:
            return f"{_PHASES[state.phase]} on {printable(state.host)} {how_long(now - job.copied)} ago"
        return f"{'silent' if silent else _phase(state, now)} on {printable(state.host)}"
    if state.phase != "ended":
        return _phase(state, now)
    if state.stopped_by:
        return "requeued" if state.stopped_by == REQUEUE else "stopped"
    return "done" if state.exit_code == 0 else f"failed {state.exit_code}"


def _phase(state: JobState, now: float) -> str:
    if state.phase == "running" and state.hung_since is not None:
        return f"hung {how_long(now - state.hung_since)}"
    if is_recovering(state):
        return "recovering"
    return "slow" if state.phase == "running" and state.slow else _PHASES[state.phase]


def is_recovering(state: JobState) -> bool:
    """Whether an attempt has ended, and another one is to follow."""
    is_between = state.phase in ("stopping", "preparing") and not state.stopped_by
    return is_between and bool(state.attempts) and state.attempts[-1].lost_at is not None


def how_long(seconds: float) -> str:
    """`31 s`, `5 min`, `3 h`, `2 d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def reason(job: KeptJob) -> str:
    """Why a job failed, hangs or is slow, or what it waits for to recover, in one line; empty if it does neither."""
    state = job.state
    if state is None:
        return one_line(job.damage)
    if state.stopped_by or job.life == "died":
        return ""
    if state.phase == "ended":
        said = state.failures[-1].sentence if state.failures else state.sentence
        return "" if state.exit_code == 0 else one_line(said)
    if is_recovering(state):
        return one_line(state.sentence)
    if state.phase == "running" and (state.hung_since is not None or state.slow):
        kind = "straggler" if state.hung_since is None else "hang"
        said = one_line(next((report.sentence for report in reversed(state.reports) if report.kind == kind), ""))
        return _DURATION.sub("", said)
    return ""


def how_it_ended(job: KeptJob) -> str:
    """How a job ended, to follow its id in a sentence."""
    state = job.state
    if job.life == "died":
        return f"ended when its controller was killed; {LEASE}"
    if state is None:
        return f"is damaged: {one_line(job.damage)}" if job.damage else "has left no state.json"
    if state.stopped_by == REQUEUE:
        return "is in the queue of its scheduler again"
    if state.stopped_by:
        return f"was stopped by {one_line(state.stopped_by)}"
    if state.exit_code == 0:
        return "finished with exit code 0"
    return f"failed with exit code {state.exit_code}: {one_line(state.sentence)}"


def one_line(text: str) -> str:
    """The first line of a text, without characters that could move a cursor."""
    return printable(text.strip().partition("\n")[0])


def moment(seconds: float, form: str = "%H:%M:%S") -> str:
    """A time since 1970 as a clock shows it here; `?` if it is beyond all calendars."""
    try:
        return time.strftime(form, time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "?"


def table(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Rows in columns; the last column is cut at `width`, if there is one. A row of one cell is indented below."""
    columns = [max(len(row[at]) for row in rows if len(row) > 1) for at in range(len(rows[0]) - 1)]
    lines: list[str] = []
    for row in rows:
        cells = "".join(f"{cell:<{length}}  " for cell, length in zip(row[:-1], columns, strict=False))
        line = f"{cells if len(row) > 1 else '    '}{row[-1]}"
        lines.append(line if width is None else cut(line, width))
    return lines

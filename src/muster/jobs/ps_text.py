"""What is said of jobs in few words: the columns of `muster ps`, and how a job ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from muster.jobs.job_folders import KeptJob
from muster.jobs.state import JobState
from muster.text import cut

SILENT = 15.0
"""Seconds after which a job on another machine that has written no new state is called silent; it does every 3 s."""

LEASE = "its agents ended all ranks when they heard no more of it, within 10 s"
"""What became of the ranks of a controller that was killed."""

_PHASES = {"connecting": "waiting for hosts", "preparing": "preparing", "running": "running", "stopping": "stopping"}


def status(job: KeptJob, now: float) -> str:
    """What a job does, or how it ended: `running`, `waiting for hosts`, `done`, `failed 3`, `stopped`, …"""
    state = job.state
    if state is None:
        return "unknown"
    if job.life == "died":
        return "controller died"
    if job.life == "elsewhere":
        silent = now - state.now > SILENT
        return f"silent on {state.host}" if silent else f"{_PHASES[state.phase]} on {state.host}"
    if state.phase != "ended":
        return _PHASES[state.phase]
    if state.stopped_by:
        return "stopped"
    return "done" if state.exit_code == 0 else f"failed {state.exit_code}"


def how_it_ended(job: KeptJob) -> str:
    """A job that has ended, as the end of a sentence that begins with its id."""
    state = job.state
    if job.life == "died":
        return f"ended when its controller was killed; {LEASE}"
    if state is None:
        return "has left no state"
    if state.stopped_by:
        return f"was stopped by {state.stopped_by}"
    return "is done, exit code 0" if state.exit_code == 0 else f"failed, exit code {state.exit_code}: {state.sentence}"


def places(state: JobState, width: int = 18) -> str:
    """`4@h1,h2`, or `64@8 hosts` where their names are too long; no number before the ranks are placed."""
    names = ",".join(host.name for host in state.hosts)
    hosts = names if len(names) <= width or len(state.hosts) == 1 else f"{len(state.hosts)} hosts"
    return f"{state.world_size or ''}@{hosts}"


def table(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Rows in columns; the last column is cut at `width`, if there is one."""
    columns = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    lines: list[str] = []
    for row in rows:
        line = "".join(f"{cell:<{length}}  " for cell, length in zip(row, columns, strict=False)) + row[-1]
        lines.append(line if width is None else cut(line, width))
    return lines

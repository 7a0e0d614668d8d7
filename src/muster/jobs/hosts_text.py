"""The hosts of a job in a few words: which run ranks, which are spare, which are missing and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from muster.jobs.ps_text import how_long, one_line
from muster.jobs.state import HostChangeState, HostPhase, HostState, JobState
from muster.text import count, names, printable

MISSING: tuple[HostPhase, ...] = ("lost", "bad", "draining", "returning")
"""States of hosts that are worth mentioning, the most important first."""

_MOST_NAMES = 2
"""Hosts in such a state that are named; of more there is only the number."""

_MOST_LINES = 40


def used_hosts(state: JobState) -> tuple[str, ...]:
    """The hosts of the current attempt; before the first one, all that are not spare."""
    if state.attempts:
        return state.attempts[-1].hosts
    return tuple(host.name for host in state.hosts if host.role != "spare")


def spares(state: JobState) -> int:
    """How many hosts are ready to replace another."""
    return sum(host.role == "spare" and host.state in ("up", "silent") for host in state.hosts)


def others(state: JobState) -> str:
    """` + 1 spare, 1 lost (b)`: the hosts beside those that run ranks as they should; empty once the job has ended."""
    if state.phase == "ended":
        return ""
    spare = spares(state)
    parts = [f" + {count(spare, 'spare')}"] if spare else [""]
    for phase in MISSING:
        found = [printable(host.name) for host in state.hosts if host.state == phase]
        if found:
            named = f" ({', '.join(found)})" if len(found) <= _MOST_NAMES else ""
            parts.append(f"{len(found)} {phase}{named}")
    return ", ".join(parts)


def where(state: JobState) -> str:
    """`6 ranks on 3 hosts + 1 spare, 1 lost (b)`."""
    ranks = f"{count(state.world_size, 'rank')} on " if state.world_size else ""
    return f"{ranks}{count(len(used_hosts(state)), 'host')}{others(state)}"


def places(state: JobState, width: int = 18) -> str:
    """`4@h1,h2`, `64@8 hosts` where their names are too long, or `8 hosts` before the ranks are placed."""
    used = used_hosts(state)
    if not state.world_size:
        return f"{count(len(used), 'host')}{others(state)}"
    listed = printable(",".join(used))
    hosts = listed if len(listed) <= width or len(used) == 1 else f"{len(used)} hosts"
    return f"{state.world_size}@{hosts}{others(state)}"


def named_hosts(state: JobState) -> str:
    """The names of the hosts that run ranks, and apart from them those of the spares."""
    spare = [printable(host.name) for host in state.hosts if host.role == "spare"]
    beside = f"; {'spare' if len(spare) == 1 else 'spares'}: {names(spare)}" if spare else ""
    return f"{names([printable(name) for name in used_hosts(state)])}{beside}"


def about_host(host: HostState, now: float) -> str:
    """Why a host is in its state, and how long a draining one stays; empty if nothing is to be said."""
    left = ""
    if host.deadline is not None and host.state == "draining":
        left = f"{how_long(host.deadline - now)} left" if host.deadline > now else "its time is over"
    return ", ".join(filter(None, [left, one_line(host.why)]))


def host_change(change: HostChangeState) -> str:
    """`b is back`, `b is lost: no message for 5.0 s`."""
    why = f": {one_line(change.why)}" if change.why else ""
    return f"{printable(change.host)} is {'back' if change.state == 'up' else change.state}{why}"


def is_notable(host: HostState) -> bool:
    """Whether it is more than one of many hosts that run ranks."""
    return host.role == "spare" or host.state in ("silent", *MISSING)


def host_rows(state: JobState, now: float) -> list[Sequence[str]]:
    """A table of the hosts if some are spare or in trouble; of many, and once the job has ended, only these."""
    is_over = state.phase == "ended"
    notable = [host for host in state.hosts if (host.state in ("lost", "bad") if is_over else is_notable(host))]
    if not notable:
        return []
    shown = state.hosts if len(state.hosts) <= _MOST_LINES and not is_over else notable[:_MOST_LINES]
    rows: list[Sequence[str]] = [("HOST", "USE", "STATE", "WHY")]
    rows += [(printable(host.name), host.role or "-", host.state, about_host(host, now)) for host in shown]
    left_out = 0 if is_over else len(state.hosts) - len(shown)
    return [*rows, (f"{count(left_out, 'more host')}",)] if left_out else rows

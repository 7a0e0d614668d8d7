"""One frame of `muster top`, from a job's state: hosts, ranks, and what Muster found. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Generic, TypeVar

from muster.jobs.attempts_text import short_reason, swaps_text, took
from muster.jobs.hosts_text import MISSING, about_host, host_change, is_notable, where
from muster.jobs.job_folders import KeptJob
from muster.jobs.ps_text import LEASE, how_it_ended, moment, status
from muster.jobs.state import HostState, JobState, RankState
from muster.text import age, cut, printable, short_size

_COLORS = {
    "running": 32,
    "waiting": 33,
    "starting": 36,
    "connecting": 36,
    "stopped": 35,
    "disk": 35,
    "silent": 35,
    "returning": 36,
    "draining": 35,
    "bad": 31,
    "hung": 31,
    "failed": 31,
    "lost": 31,
    "ended": 2,
    "canceled": 2,
}
_BOLD, _DIM = 1, 2
_ODD = ("failed", "hung", "lost", "stopped", "disk")
"""States of ranks that are shown first where not all fit."""

_FEWEST_HOSTS = 3
_LONGEST_WHY = 40
_REPORTS = 3
_LINES_OF_A_REPORT = 3
"""Reports that are shown, the newest last, and lines of each."""


Item = TypeVar("Item", HostState, RankState)

_Paint = Callable[[str, int | None], str]
"""Gives a text the color with this number, if colors are on."""


@dataclass(frozen=True)
class _Column(Generic[Item]):
    title: str
    cell: Callable[[Item], str]
    worth: int
    """On a narrow terminal the columns with the lowest number are left out."""
    left: bool = False


def frame(job: KeptJob, *, width: int, height: int, now: float, color: bool) -> list[str]:
    """The lines of the frame, none longer than `width` and not more than `height`."""
    state = job.state
    if state is None:
        return [f"job {job.id} {how_it_ended(job)}"[:width]]

    def paint(text: str, code: int | None) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if color and code is not None and text.strip() else text

    head = _head(job, state, width, now, paint)
    foot = _foot(job, state, width, paint)
    room = max(4, height - len(head) - len(foot) - 2)
    hosts = _hosts(state, now, width, max(_FEWEST_HOSTS, min(len(state.hosts), room // 3)), paint)
    ranks = _ranks(state, width, max(2, room - len(hosts)), paint)
    return [*head, "", *hosts, *([""] if ranks else []), *ranks, *foot][:height]


def _head(job: KeptJob, state: JobState, width: int, now: float, paint: _Paint) -> list[str]:
    ended = job.life in ("ended", "died")
    lasted = age((state.now if ended else now) - state.begin)
    attempt = f", attempt {state.attempt}" if state.attempt else ""
    rates = [rank.step_rate for rank in state.ranks if rank.step_rate is not None]
    unit = "steps/s" if any(rank.steps for rank in state.ranks) else "collectives/s"
    rate = f", {min(rates):.3g} {unit}" if rates and not ended else ""
    first = f"{job.id}  {status(job, now)}, {lasted}{attempt}"
    second = printable(f"{where(state)} ({state.engine}){rate}: {state.command}")
    return [paint(cut(first, width), _BOLD), cut(second, width)]


def _foot(job: KeptJob, state: JobState, width: int, paint: _Paint) -> list[str]:
    lines: list[str] = []
    if job.life == "died":
        lines.append(f"the controller was killed; {LEASE}")
    elif state.sentence:
        lines.append(state.sentence)
    lines += _last_recovery(state)
    ended = [attempt.lost_at for attempt in state.attempts[:-1] if attempt.lost_at is not None]
    newer = [change for change in state.host_changes if change.time > max(ended, default=0.0)]
    lines += [f"{moment(change.time)} {host_change(change)}" for change in newer[-1:]]
    for report in state.reports[-_REPORTS:]:
        when = moment(report.time)
        lines.append(f"{when} {report.sentence}")
    wrapped = [part for line in lines for part in wrap(printable(line), max(10, width))[:_LINES_OF_A_REPORT]]
    return ["", *(paint(cut(line, width), 33) for line in wrapped)] if wrapped else []


def _last_recovery(state: JobState) -> list[str]:
    """What ended the attempt before this one, and how long the recovery took."""
    if len(state.attempts) < 2:
        return []
    before, now = state.attempts[-2:]
    when = "" if before.lost_at is None else f"{moment(before.lost_at)} "
    recovery = f"recovery took {took(now.recovery)}" if now.recovery is not None else ""
    done = ", ".join(filter(None, [swaps_text(now), recovery]))
    return [f"{when}attempt {before.number} ended: {short_reason(before.lost_to)}" + (f"; {done}" if done else "")]


def _hosts(state: JobState, now: float, width: int, most: int, paint: _Paint) -> list[str]:
    hosts = state.hosts
    shown = hosts if len(hosts) <= most else sorted(hosts, key=lambda host: not is_notable(host))[: most - 1]
    has_roles = any(host.role == "spare" or host.state in MISSING for host in hosts)
    columns = [
        _Column[HostState]("HOST", lambda host: printable(host.name), 9, left=True),
        _Column[HostState]("USE", lambda host: (host.role or "-") if has_roles else "", 8, left=True),
        _Column[HostState]("STATE", lambda host: host.state, 9, left=True),
        _Column[HostState]("CPU", _host_cpu, 8),
        _Column[HostState]("MEMORY", lambda host: _sizes(host.memory_used, host.memory_total), 7),
        _Column[HostState]("DISK WAIT", lambda host: _share(host.disk_wait), 4),
        _Column[HostState]("NET IN/OUT", lambda host: _sizes(host.network_in, host.network_out), 5),
        _Column[HostState]("GPUS", _host_gpus, 6),
        _Column[HostState]("WHY", lambda host: cut(about_host(host, now), _LONGEST_WHY), 6, left=True),
    ]
    lines = _table(columns, hosts, shown, width, paint)
    if len(shown) < len(hosts):
        lines.append(paint(cut(f"… {len(hosts) - len(shown)} more hosts", width), _DIM))
    return lines


def _ranks(state: JobState, width: int, most: int, paint: _Paint) -> list[str]:
    """A line for each rank, as many as fit; `most` counts the line of titles too."""
    ranks = state.ranks
    if not ranks:
        return []
    shown = ranks
    if len(ranks) + 1 > most:
        odd_first = sorted(ranks, key=lambda rank: (rank.state not in _ODD, rank.rank))
        shown = sorted(odd_first[: max(1, most - 2)], key=lambda rank: rank.rank)
    lines = _table(_columns(state), ranks, shown, width, paint)
    if len(shown) < len(ranks):
        kinds = Counter(rank.state for rank in ranks)
        counted = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
        lines.append(paint(cut(f"… {len(ranks) - len(shown)} more ranks; of all: {counted}", width), _DIM))
    return lines


def _columns(state: JobState) -> list[_Column[RankState]]:
    steps = any(rank.steps for rank in state.ranks)
    gpus = {(host.name, gpu.index): gpu for host in state.hosts for gpu in host.gpus}

    def gpu(rank: RankState) -> str:
        known = None if rank.gpu is None else gpus.get((rank.host, rank.gpu))
        return "" if rank.gpu is None else f"{rank.gpu}: {_share(known.use)}" if known is not None else f"{rank.gpu}"

    def done(rank: RankState) -> str:
        return str((rank.steps if steps else rank.collectives) or "")

    return [
        _Column("RANK", lambda rank: str(rank.rank), 9),
        _Column("HOST", lambda rank: printable(rank.host), 4, left=True),
        _Column("STATE", lambda rank: f"{rank.state} {rank.exit_code or ''}".rstrip(), 9, left=True),
        _Column("STEPS" if steps else "COLLECTIVES", done, 6),
        _Column("PER S", lambda rank: "" if rank.step_rate is None else f"{rank.step_rate:.3g}", 7),
        _Column("WAITS", lambda rank: _share(rank.waiting), 8),
        _Column("CPU", lambda rank: "" if rank.cpu is None else f"{rank.cpu:.2f}", 6),
        _Column("MEM", lambda rank: short_size(rank.memory), 5),
        _Column("GPU", gpu, 7),
        _Column("GPU MEM", lambda rank: short_size(rank.gpu_memory), 5),
        _Column("LAST SEEN", lambda rank: printable(rank.place), 2, left=True),
    ]


def _table(
    columns: Sequence[_Column[Item]], every: Sequence[Item], shown: Sequence[Item], width: int, paint: _Paint
) -> list[str]:
    """Titles and a line for each item that is shown; as wide as all items need, so that nothing jumps."""
    sizes = {column: max(len(column.cell(item)) for item in every) for column in columns}
    sizes = {column: max(size, len(column.title)) for column, size in sizes.items() if size}
    while len(sizes) > 2 and sum(sizes.values()) + 2 * (len(sizes) - 1) > width:
        del sizes[min(sizes, key=lambda column: column.worth)]
    titles = "  ".join(_pad(column.title, column, size) for column, size in sizes.items())
    lines = [paint(cut(titles.rstrip(), width), _DIM)]
    for item in shown:
        cells = {column: _pad(column.cell(item), column, size) for column, size in sizes.items()}
        plain = "  ".join(cells.values()).rstrip()
        painted = (
            paint(cell, _COLORS.get(item.state) if column.title == "STATE" else None) for column, cell in cells.items()
        )
        lines.append("  ".join(painted).rstrip() if len(plain) <= width else cut(plain, width))
    return lines


def _pad(text: str, column: _Column[Item], size: int) -> str:
    return f"{text:<{size}}" if column.left else f"{text:>{size}}"


def _host_cpu(host: HostState) -> str:
    use = f"{host.cpu_use:.0%}" if host.cpu_use is not None else "-"
    return f"{use} of {host.cpus}" if host.cpus else ""


def _host_gpus(host: HostState) -> str:
    if not host.gpus:
        return ""
    uses = [gpu.use for gpu in host.gpus if gpu.use is not None]
    mean = f" {sum(uses) / len(uses):.0%}" if uses else ""
    throttled = next((f", {gpu.index} {printable(gpu.throttled)}" for gpu in host.gpus if gpu.throttled), "")
    return f"{len(host.gpus)}x{mean}{throttled}"


def _sizes(first: float | None, second: float | None) -> str:
    return "" if first is None else f"{short_size(first)}/{short_size(second)}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"

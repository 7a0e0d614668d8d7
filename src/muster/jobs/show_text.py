"""The verdict on a job as text: what failed, why and what to do, hangs with stack traces, and when it all happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.jobs.job_folders import KeptJob
from muster.jobs.ps_text import LEASE, moment, one_line, status
from muster.jobs.state import Failure, JobState, Report
from muster.text import age, count, cut, names, printable, rank_list, significant, tilde

_MOST_REPORTS = 5
"""Hangs that are shown in full, the newest ones; and stragglers."""

_MOST_STACKS = 4
"""Ranks whose stack traces are shown; the files have all of them."""

_MOST_TIMES = 40
"""Lines of the timeline."""


@dataclass(frozen=True)
class _Event:
    time: float
    text: str


def show(job: KeptJob, now: float, width: int | None, files: Sequence[str]) -> list[str]:
    """All of it: the head, the verdict with stack traces, the timeline and where the logs are.

    Lines of the timeline are cut at `width`, if there is one; `files` are the names of the files with stack traces.
    """
    state = job.state
    logs = f"Logs: {tilde(job.folder)}"
    if state is None:
        return [*verdict(job, now), "", logs]
    traces = [line for report in _hangs(state) for line in _stack_traces(report, state)]
    stacks = [f"Stack traces: {', '.join(files)} in that directory"] if files else []
    return [
        f"{job.id}: {status(job, now)}",
        *_head(job, state, now),
        "",
        *verdict(job, now),
        *traces,
        "",
        "Timeline:",
        *(line if width is None else cut(line, width) for line in _timeline(job, state)),
        "",
        logs,
        *stacks,
    ]


def verdict(job: KeptJob, now: float) -> list[str]:
    """How a job ended, or how it stands: sentences, and indented what belongs to them."""
    state = job.state
    if state is None:
        return [f"job {job.id} has no readable state.json: it is missing, damaged or belongs to another user"]
    lines: list[str] = []
    for report in (*_hangs(state), *_stragglers(state)):
        lines += _report(report)
    for failure in state.failures:
        lines += _failure(failure, of_many=state.attempt > 0)
    return [*lines, _last_sentence(job, state, now)]


def _head(job: KeptJob, state: JobState, now: float) -> list[str]:
    ranks = f"{count(state.world_size, 'rank')} on " if state.world_size else ""
    hosts = names([printable(host.name) for host in state.hosts])
    is_over = job.life in ("ended", "died")
    lasted = f"{'ran' if is_over else 'has been running'} for {age((state.now if is_over else now) - state.begin)}"
    return [
        f"  Command: {printable(state.command)}",
        f"  Where: {ranks}{count(len(state.hosts), 'host')} ({printable(state.engine)}): {hosts}",
        f"  When: started {moment(state.begin, '%Y-%m-%d %H:%M:%S')}, {lasted}",
    ]


def _hangs(state: JobState) -> Sequence[Report]:
    return [report for report in state.reports if report.kind == "hang"][-_MOST_REPORTS:]


def _stragglers(state: JobState) -> Sequence[Report]:
    return [report for report in state.reports if report.kind == "straggler"][-_MOST_REPORTS:]


def _report(report: Report) -> list[str]:
    name = "hang" if report.kind == "hang" else "straggler"
    return [f"{name} at {moment(report.time)}: {one_line(report.sentence)}", *_indented(report.detail)]


def _failure(failure: Failure, *, of_many: bool) -> list[str]:
    attempt = f"attempt {failure.attempt}: " if of_many else ""
    return [
        f"{attempt}{one_line(failure.sentence)}",
        *_indented(failure.sentence.strip().partition("\n")[2]),
        *_indented(failure.detail),
        *(part for line in failure.lines for part in (one_line(line), *_indented(line.strip().partition("\n")[2]))),
    ]


def _last_sentence(job: KeptJob, state: JobState, now: float) -> str:
    if job.life == "died":
        return f"the controller was killed; {LEASE}"
    if state.phase != "ended":
        return _standing(job, state, now)
    lasted = age(state.now - state.begin)
    if state.stopped_by:
        return one_line(state.sentence) or f"stopped by {one_line(state.stopped_by)} after {lasted}"
    if state.exit_code == 0:
        return f"done after {lasted}, exit code 0" + (f"; {one_line(state.sentence)}" if state.sentence else "")
    if not state.failures and state.sentence:
        return f"failed after {lasted}, exit code {state.exit_code}: {one_line(state.sentence)}"
    return f"failed after {lasted}, exit code {state.exit_code}"


def _standing(job: KeptJob, state: JobState, now: float) -> str:
    """How a job stands that has not ended."""
    said = status(job, now)
    rates = [rank.step_rate for rank in state.ranks if rank.step_rate is not None]
    if state.phase == "running" and state.slow:
        said = f"{said}: {rank_list(state.slow)}"
    elif rates and state.hung_since is None:
        unit = "steps/s" if any(rank.steps for rank in state.ranks) else "collectives/s"
        said = f"{said}, {significant(min(rates))} {unit}"
    elif state.sentence:
        said = f"{said}: {one_line(state.sentence)}"
    return said


def _stack_traces(report: Report, state: JobState) -> list[str]:
    hosts = {rank.rank: rank.host for rank in state.ranks}
    named = [rank for rank in report.ranks if rank in report.stacks]
    others = [rank for rank in sorted(report.stacks) if rank not in named]
    shown = [*named, *others][: max(_MOST_STACKS, 1)]
    lines = [line for rank in shown for line in _stack_trace(rank, hosts, report.stacks)]
    if len(report.stacks) > len(shown):
        lines += ["", f"{count(len(report.stacks) - len(shown), 'more stack trace')} not shown"]
    return lines


def _stack_trace(rank: int, hosts: Mapping[int, str], stacks: Mapping[int, str]) -> list[str]:
    where = f" on {printable(hosts[rank])}" if rank in hosts else ""
    return ["", f"Stack trace of rank {rank}{where}:", *_indented(stacks[rank])]


def _timeline(job: KeptJob, state: JobState) -> list[str]:
    events = [_Event(state.begin, "started")]
    events += [
        _Event(state.begin + after, f"{printable(name)} (+{after:.1f} s)") for name, after in state.phases.items()
    ]
    events += [_Event(report.time, f"{report.kind}: {one_line(report.sentence)}") for report in state.reports]
    events += [_Event(failure.time, one_line(failure.sentence)) for failure in state.failures]
    if state.phase == "ended":
        how = f"stopped by {one_line(state.stopped_by)}" if state.stopped_by else f"ended, exit code {state.exit_code}"
        events.append(_Event(state.now, how))
    elif job.life == "died":
        events.append(_Event(state.now, "last heard of"))
    events.sort(key=lambda event: event.time)
    shown = events if len(events) <= _MOST_TIMES else [*events[: _MOST_TIMES // 2], *events[-_MOST_TIMES // 2 :]]
    return [f"  {moment(event.time)}  {event.text}" for event in shown]


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.rstrip().splitlines()]

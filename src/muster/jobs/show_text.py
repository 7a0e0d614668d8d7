"""The verdict on a job as text: what failed, why and what to do, hangs with stack traces, and when it all happened."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from muster.jobs.attempts_text import attempt_rows, swaps_text, took
from muster.jobs.hosts_text import host_change, host_rows, named_hosts, where
from muster.jobs.job_folders import KeptJob
from muster.jobs.ps_text import LEASE, REQUEUE, how_it_ended, how_long, moment, one_line, status, table
from muster.jobs.state import AttemptState, Failure, HostChangeState, JobState, RankState, Report
from muster.text import age, count, cut, printable, rank_list, significant, tilde

_MOST_REPORTS = 5
"""Hangs that are shown in full, the newest ones; and stragglers."""

_MOST_STACKS = 4
"""Stack traces that are shown; the files have all of them."""

_MOST_PLACES = 8
"""Places in the code that are shown of a running job, each with its ranks."""

_STILL = 5.0
"""Seconds without progress that are worth mentioning."""

_DOING = {
    "starting": "starting",
    "waiting": "waiting in a collective",
    "stopped": "stopped (SIGSTOP)",
    "disk": "in disk sleep",
    "lost": "lost with the host",
}

_MOST_TIMES = 40
"""Lines of the timeline."""


@dataclass(frozen=True)
class _Event:
    time: float
    text: str


def show(job: KeptJob, now: float, width: int | None, files: Sequence[str]) -> list[str]:
    """All of it: the head, the verdict with stack traces, hosts, attempts, the timeline and where the logs are.

    Lines of tables and of the timeline are cut at `width`, if there is one; `files` are the names of the files with
    stack traces.
    """
    state = job.state
    logs = f"Logs: {tilde(job.folder)}"
    if state is None:
        return [*verdict(job, now), "", logs]
    traces = [line for report in _with_traces(state) for line in _stack_traces(report, state, _MOST_STACKS)]
    stacks = [f"Stack traces: {', '.join(files)} in that directory"] if files else []
    return [
        f"{job.id}: {status(job, now)}",
        *_head(job, state, now),
        "",
        *verdict(job, now),
        *(_where_ranks_are(state) if job.may_run else ()),
        *traces,
        *_titled("Hosts:", host_rows(state, now), width),
        *_titled("Attempts:", attempt_rows(state.attempts, now=state.now, last=_how_it_stands(job, state)), width),
        "",
        "Timeline:",
        *(line if width is None else cut(line, width) for line in _timeline(job, state)),
        "",
        logs,
        *stacks,
    ]


def show_stacks(job: KeptJob, state: JobState, report: Report) -> list[str]:
    """The stack traces of a running job, just taken."""
    return [
        f"{job.id}: {status(job, report.time)}",
        *_stack_traces(report, state, len(report.stacks)),
        "",
        one_line(report.sentence),
        "The job keeps running",
    ]


def verdict(job: KeptJob, now: float) -> list[str]:
    """How a job ended, or how it stands: sentences, and indented what belongs to them."""
    state = job.state
    if state is None:
        return [f"job {job.id} {how_it_ended(job)}"]
    lines: list[str] = []
    for report in (*_hangs(state), *_stragglers(state)):
        lines += _report(report)
    for failure in state.failures:
        lines += _failure(failure, of_many=state.attempt > 0)
    return [*lines, _last_sentence(job, state, now)]


def _head(job: KeptJob, state: JobState, now: float) -> list[str]:
    is_over = job.life in ("ended", "died")
    # A job that a scheduler has requeued had another controller before this one.
    begins = [*(attempt.begin for attempt in state.attempts[:1] if attempt.begin < state.begin), state.begin]
    lasted = f"{'ran' if is_over else 'has been running'} for {age((state.now if is_over else now) - state.begin)}"
    return [
        f"  Command: {printable(state.command)}",
        f"  Where: {where(state)} ({printable(state.engine)}): {named_hosts(state)}",
        f"  When: started {', again '.join(moment(begin, '%Y-%m-%d %H:%M:%S') for begin in begins)}, {lasted}",
    ]


def _titled(title: str, rows: list[Sequence[str]], width: int | None) -> list[str]:
    """A table with a title; nothing if it has no rows."""
    lines = [f"  {line}".rstrip() for line in table(rows, None)] if rows else []
    return ["", title, *(line if width is None else cut(line, width) for line in lines)] if lines else []


def _how_it_stands(job: KeptJob, state: JobState) -> str:
    """How the last attempt stands, or how the job ended with it."""
    if state.phase != "ended":
        return "its controller was killed" if job.life == "died" else "still running"
    return f"stopped by {one_line(state.stopped_by)}" if state.stopped_by else f"exit code {state.exit_code}"


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
    elif rates and state.phase == "running" and state.hung_since is None:
        unit = "steps/s" if any(rank.steps for rank in state.ranks) else "collectives/s"
        said = f"{said}, {significant(min(rates))} {unit}"
    elif state.sentence:
        said = f"{said}: {one_line(state.sentence)}"
    return said


def _where_ranks_are(state: JobState) -> list[str]:
    """Where the code of each rank is; nothing about a hang, whose report says that."""
    if state.phase != "running" or state.hung_since is not None:
        return []
    alike: dict[str, list[RankState]] = {}
    for rank in state.ranks:
        place = f"at {printable(rank.place).removesuffix(' in <module>')}" if rank.place else ""
        what = " ".join(filter(None, [_DOING.get(rank.state, ""), place]))
        if what and rank.exit_code is None:
            alike.setdefault(what, []).append(rank)
    groups = list(alike.items())
    known = {rank.rank for ranks in alike.values() for rank in ranks}
    unknown = [rank.rank for rank in state.ranks if rank.exit_code is None and rank.rank not in known]
    lines = [f"{rank_list(unknown)}: unknown; `muster show --stacks` prints where"] if unknown else []
    for what, ranks in groups[:_MOST_PLACES]:
        be = "is" if len(ranks) == 1 else "are"
        lines.append(f"{rank_list(rank.rank for rank in ranks)} {be} {what}{_still(state, ranks)}")
    left_out = sum(len(ranks) for _, ranks in groups[_MOST_PLACES:])
    return [*lines, f"{count(left_out, 'more rank')} elsewhere"] if left_out else lines


def _still(state: JobState, ranks: Sequence[RankState]) -> str:
    """`, no progress for 18 s`; of a rank without collectives nothing is known."""
    times = [state.now - (rank.moved or 0.0) for rank in ranks]
    is_known = all(rank.moved and (rank.collectives or rank.steps or rank.state == "waiting") for rank in ranks)
    return f", no progress for {how_long(min(times))}" if is_known and min(times) >= _STILL else ""


def _with_traces(state: JobState) -> Sequence[Report]:
    """The reports whose stack traces are shown: hangs, or those saved before a job without a hang was stopped."""
    saved = [report for report in state.reports if report.kind == "stacks" and report.stacks]
    return _hangs(state) or (saved[-1:] if state.phase in ("stopping", "ended") else [])


def _stack_traces(report: Report, state: JobState, most: int) -> list[str]:
    """The stack traces of a report, those of the ranks it names first, equal ones once.

    A rank whose stack trace is in the report's detail is left out.
    """
    described = {int(rank) for rank in re.findall(r"^rank (\d{1,9}) on ", report.detail, re.MULTILINE)}
    named = [rank for rank in report.ranks if rank in report.stacks]
    alike: dict[str, list[int]] = {}
    for rank in (*named, *sorted(set(report.stacks) - {*named})):
        if rank not in described:
            alike.setdefault(report.stacks[rank], []).append(rank)
    shown = list(alike.items())[:most]
    hosts = {rank.rank: rank.host for rank in state.ranks}
    lines: list[str] = []
    for stack, ranks in shown:
        where = f" on {printable(hosts[ranks[0]])}" if len(ranks) == 1 and ranks[0] in hosts else ""
        lines += [
            "",
            f"Stack trace of {rank_list(ranks)}{where} at {moment(report.time)}:",
            *_indented(stack or "none: the process did not answer"),
        ]
    if len(alike) > len(shown):
        lines += ["", f"{count(len(alike) - len(shown), 'more stack trace')} not shown"]
    return lines


def _timeline(job: KeptJob, state: JobState) -> list[str]:
    again = any(attempt.begin < state.begin for attempt in state.attempts)
    events = [_Event(state.begin, "started again" if again else "started")]
    events += [
        _Event(state.begin + after, f"{printable(name)} (+{after:.1f} s)") for name, after in state.phases.items()
    ]
    events += [_Event(report.time, _reported(report)) for report in state.reports]
    events += [_Event(failure.time, one_line(failure.sentence)) for failure in state.failures]
    events += [_Event(attempt.begin, _begun(attempt)) for attempt in state.attempts if again or attempt.number]
    known = {(failure.attempt, failure.sentence) for failure in state.failures}
    events += [
        _Event(attempt.lost_at, f"attempt {attempt.number} ended: {one_line(attempt.lost_to)}")
        for attempt in state.attempts
        if attempt.lost_at is not None and (attempt.number, attempt.lost_to) not in known
    ]
    events += [
        _Event(change.time, host_change(change)) for change in state.host_changes if not _is_listed(change, state)
    ]
    if state.phase == "ended":
        stopped = "requeued" if state.stopped_by == REQUEUE else f"stopped by {one_line(state.stopped_by)}"
        how = stopped if state.stopped_by else f"ended, exit code {state.exit_code}"
        events.append(_Event(state.now, how))
    elif job.life == "died":
        events.append(_Event(state.now, "last heard of"))
    events.sort(key=lambda event: event.time)
    shown = events if len(events) <= _MOST_TIMES else [*events[: _MOST_TIMES // 2], *events[-_MOST_TIMES // 2 :]]
    return [f"  {moment(event.time)}  {event.text}" for event in shown]


def _is_listed(change: HostChangeState, state: JobState) -> bool:
    """Whether the end of an attempt reports the loss of this host."""
    said = [failure.sentence for failure in state.failures] + [attempt.lost_to for attempt in state.attempts]
    return (
        change.state == "lost"
        and bool(change.why)
        and any(f"{change.host} is lost: {change.why}" in one for one in said)
    )


def _begun(attempt: AttemptState) -> str:
    hosts = f"{count(attempt.world_size, 'rank')} on {count(len(attempt.hosts), 'host')}"
    recovery = f"recovery took {took(attempt.recovery)}" if attempt.recovery is not None else ""
    return f"attempt {attempt.number} began: " + ", ".join(filter(None, [hosts, swaps_text(attempt), recovery]))


def _reported(report: Report) -> str:
    if report.kind == "stacks":
        return f"{one_line(report.sentence).partition(':')[0]} saved"
    return f"{report.kind}: {one_line(report.sentence)}"


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.rstrip().splitlines()]

"""How an attempt ended: which rank failed first, why, what to do about it, and the exit code. Pure."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from muster.controller.diagnosis.rank_end import HostLoss, RankEnd
from muster.errors import EXIT_HANG, EXIT_MUSTER
from muster.text import count, cut, rank_list

FIX = "Fix: "
"""Prefix of the line that says what to do, as in `muster check`."""

_SAME_CALLS = "call the same collectives in the same order on all ranks, with tensors of one shape and dtype"

_LAST_LINES = 30
"""Number of stderr lines shown again for a rank that left no exception."""

_LOST = "host lost: "
"""Prefix of the signature when a host was lost."""

_SEEN_LATE = 1.0
"""Seconds by which a symptom may appear to precede its cause: a busy host notices a dead rank late."""

_CAUSE_LATE = 4.0
"""Seconds by which a cause may follow its symptom: a rank may close its connections before it reports why."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of an attempt, as reported to the user."""

    exit_code: int
    sentence: str = ""
    detail: str = ""
    """A traceback or the last output, shown below the sentence."""
    why: str = ""
    """The explanation, if Muster knows more than the rank reported."""
    fix: str = ""
    """What to do about it."""
    notes: tuple[str, ...] = ()
    signature: str = ""
    """Where and how it failed: the same signature twice is the same failure."""
    progress: int = 0
    """Number of collectives that the failed rank had reached."""
    can_restart: bool = False
    first: RankEnd | None = None
    """The rank that failed first, if it was a rank."""

    @property
    def ok(self) -> bool:
        """Whether every rank ended with exit code 0."""
        return self.exit_code == 0

    @property
    def is_lost(self) -> bool:
        """Whether a lost host ended the attempt."""
        return self.signature.startswith(_LOST)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines below the sentence and its detail."""
        fix = f"{FIX}{self.fix}" if self.fix else ""
        return (*filter(None, (self.why, fix)), *self.notes)

    @property
    def in_short(self) -> str:
        """Sentence, explanation and fix in one line."""
        return "; ".join((self.sentence, *self.lines[: len(self.lines) - len(self.notes)]))

    def after(self, differing: str) -> Verdict:
        """This verdict, preceded by the different collectives that ranks called, which explain it."""
        return replace(self, sentence=f"{differing}; then {self.sentence}", why="", fix=_SAME_CALLS)

    def because(self, reason: str) -> Verdict:
        """This verdict for a job that a scheduler ended: ranks killed by its signals need no explanation."""
        if self.exit_code in (128 + signal.SIGTERM, 128 + signal.SIGKILL):
            return replace(self, sentence=reason, detail="", why="", fix="", notes=(), can_restart=False)
        if self.is_lost:
            return replace(self, sentence=reason, fix="", notes=(self.sentence, *self.notes), can_restart=False)
        return replace(self, notes=(*self.notes, reason), can_restart=False)


def judge(ends: Sequence[RankEnd], losses: Sequence[HostLoss], *, start: float) -> Verdict:
    """Find the first failure on all hosts and describe it."""
    failures = sorted((end for end in ends if end.failed), key=lambda end: end.time)
    fatal = [loss for loss in losses if loss.ends_all]
    if fatal:
        losses, failures = fatal, [end for end in failures if end.status != -signal.SIGTERM]
    first = _first(failures)
    # Of several lost hosts, the one whose rank failed first.
    loss = min(losses, key=lambda lost: (first is None or lost.host != first.host, lost.time), default=None)
    # A lost host is noticed seconds after it was lost, so ranks elsewhere may have failed because of it before.
    if loss is not None and (first is None or first.is_symptom or first.host == loss.host):
        return _host_lost(loss, failures)
    if first is None:
        return Verdict(exit_code=0)
    left_early = _left_early(ends, first)
    followers = [end for end in failures if end is not first]
    are_all = len(followers) + 1 == len(ends) > 1 and all(_is_same(first, end) for end in followers)
    everyone = "both ranks" if len(ends) == 2 else f"all {len(ends)} ranks"
    who = f"{everyone} failed the same way" if are_all else f"rank {first.rank} on {first.host} failed first"
    sentence = f"{who}, {_after(first.time - start)}: {describe(first)}"
    from muster.controller.diagnosis.explain import explain  # most jobs do not fail

    explanation = explain(first, ends, left_early)
    notes: list[str] = []
    if left_early is not None:
        how = f": {explanation.sentence}" if explanation is not None else ""
        effect = "lost its connection" if first.is_echo else "timed out"
        sentence = (
            f"rank {left_early.rank} on {left_early.host} ended with exit code 0, {_after(left_early.time - start)}, "
            f"while other ranks still needed it{how}; then rank {first.rank} on {first.host} {effect}"
            + (f" at {first.place}" if first.place else "")
        )
    if followers and not are_all:
        notes.append(_followed(first, followers))
    stopped = sum(end.stopped for end in ends)
    if stopped:
        notes.append(f"{count(stopped, 'other rank')} {'was' if stopped == 1 else 'were'} then stopped by Muster")
    last = first.last_words.splitlines()[-_LAST_LINES:] if first.last_words != first.summary else []
    return Verdict(
        exit_code=exit_code_of(first.status),
        sentence=sentence,
        detail=first.traceback or "\n".join(last),
        why=explanation.sentence if explanation is not None and left_early is None else "",
        fix=explanation.fix if explanation is not None else "",
        notes=tuple(notes),
        signature=f"{first.place} {first.summary or first.status}",
        progress=first.done,
        can_restart=True,
        first=first,
    )


def drained(hosts: Sequence[str], sentence: str) -> Verdict:
    """The ranks had time to save, because nothing replaces these hosts, which are about to go away."""
    return Verdict(exit_code=128 + signal.SIGTERM, sentence=sentence, signature=f"{_LOST}{', '.join(hosts)}")


def describe(end: RankEnd) -> str:
    """How a rank ended, as a clause."""
    if end.summary:
        return cut(end.summary, 200) + (f" ({end.place})" if end.place else "")
    if end.status < 0:
        name = signal_name(-end.status)
        if -end.status == signal.SIGKILL:
            if end.memory is None or not end.memory.is_counted:
                return f"killed by {name}, not sent by Muster"
            from muster.controller.diagnosis.explain.host_failures import out_of_memory

            if out_of_memory(end):
                likely = "" if end.memory.group_kills != 0 else "probably "
                return f"out of memory, {likely}killed by the OOM killer ({name})"
            return f"killed by {name}, sent by neither Muster nor the OOM killer"
        if -end.status in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL):
            return f"crashed in native code ({name})"
        return f"ended by {name}, not sent by Muster"
    where = f" at {end.place}" if end.place else " without an exception"
    return f"ended with exit code {end.status}{where}"


def exit_code_of(status: int) -> int:
    """A rank's status as a shell's exit code."""
    return 128 - status if status < 0 else status


def hung(sentence: str, culprits: Collection[int], *, progress: int) -> Verdict:
    """The verdict of a job that was ended because it hung."""
    return Verdict(
        exit_code=EXIT_HANG,
        sentence=f"the job hung and was ended (--on-hang kill): {sentence}",
        signature=f"hang of {sorted(culprits)}",
        progress=progress,
    )


def is_same_failure(previous: Verdict, now: Verdict) -> bool:
    """Whether a restart failed in the same way at the same place after the same number of collectives.

    A job that resumes from a checkpoint fails after a different number of collectives and deserves another try.
    """
    return previous.signature == now.signature and now.progress == previous.progress


def _first(failures: Sequence[RankEnd]) -> RankEnd | None:
    causes = [end for end in failures if not end.is_symptom]
    if causes and causes[0].time <= failures[0].time + _CAUSE_LATE:
        return causes[0]
    # A rank that timed out and left is why others lost their connections.
    tired = [end for end in failures if not end.is_echo]
    if tired and tired[0].time <= failures[0].time + _SEEN_LATE:
        return tired[0]
    return failures[0] if failures else None


def _left_early(ends: Sequence[RankEnd], first: RankEnd) -> RankEnd | None:
    """The rank whose clean exit caused the first failure, if there is one."""
    if not first.is_symptom:
        return None
    early = [end for end in ends if end.status == 0 and not end.stopped and end.time <= first.time + _SEEN_LATE]
    return min(early, key=lambda end: end.time, default=None)


def _host_lost(loss: HostLoss, failures: Sequence[RankEnd]) -> Verdict:
    others = [end for end in failures if end.host != loss.host]
    notes = (
        ["ranks on other hosts failed because of it: " + "; ".join(_short(end) for end in others[:4])] if others else []
    )
    why = ""
    fix = f"run it again; `dmesg` on {loss.host} shows whether the OOM killer ended the process"
    if loss.is_up:
        sentence = f"the job cannot continue on {loss.host}: {loss.why}"
        # Its ranks ended with it, and their agent then read the counters.
        end = next((end for end in failures if end.host == loss.host and end.killed), None)
        if end is not None:
            from muster.controller.diagnosis.explain.host_failures import SPAWNER, out_of_memory, out_of_memory_fix

            reason = out_of_memory(end)
            why = f"the OOM killer {reason.format(SPAWNER)}" if reason else ""
            fix = out_of_memory_fix(end) if reason else fix
    else:
        sentence = f"host {loss.host} is lost: {loss.why}"
        if not loss.ends_all:  # else its launcher says that a process was killed, so the host is up
            fix = "check that it is up and reachable, or run without it"
        if loss.pod:
            fix = f"`kubectl describe pod {loss.pod}` may show more; with --spares N, other pods replace lost ones"
    return Verdict(
        exit_code=EXIT_MUSTER,
        sentence=sentence,
        why=why,
        fix=fix,
        notes=tuple(notes),
        signature=f"{_LOST}{loss.host}",
    )


def _followed(first: RankEnd, followers: Sequence[RankEnd]) -> str:
    """The ranks that failed after the first, and why if all have one reason: then it needs no details."""
    how = ""
    if all(end.is_echo for end in followers) and not first.is_symptom:
        its = "its connection" if len(followers) == 1 else "their connections"
        how = f" because {its} to rank {first.rank} broke"
    elif all(_is_same(first, end) for end in followers):
        how = " the same way"
    which = rank_list([end.rank for end in followers]) if how else "; ".join(map(_short, followers[:4]))
    return f"{count(len(followers), 'other rank')} then failed{how}: {which}"


def _is_same(first: RankEnd, other: RankEnd) -> bool:
    """Whether two ranks failed in the same way at the same place, each by itself."""
    said = bool(first.summary or first.place)
    return (
        said
        and not first.is_symptom
        and ((first.summary, first.place, first.status) == (other.summary, other.place, other.status))
    )


def _short(end: RankEnd) -> str:
    return f"rank {end.rank} on {end.host} ({cut(describe(end), 90)})"


def _after(seconds: float) -> str:
    return f"{max(0.0, seconds):.1f} s after the start"


def signal_name(number: int) -> str:
    """The name of a signal, or its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""The attempts of a job as a table: how long each ran, what ended it, and how long the recovery took. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from muster.jobs.ps_text import moment, one_line
from muster.jobs.state import AttemptState
from muster.text import count, cut, names, printable, significant

_TITLES = ("ATTEMPT", "BEGAN", "RAN", "RANKS", "HOSTS", "RECOVERY", "ENDED BY")

_MOST_ROWS = 20
"""Attempts in a table, the newest ones."""

_LONGEST_REASON = 80
"""Characters of what ended an attempt."""

_LONGEST_HOSTS = 24
"""Characters for the names of the hosts of an attempt."""

_AFTER_START = re.compile(r"(?<= failed first), [\d.]+ s after the start")
"""What the column RAN shows too."""

_LOSS = re.compile(r"host (\S+) is lost: ([^;]*)(;.*)?")
"""The verdict on an attempt that lost a host, and what it may mean."""


def attempt_rows(
    attempts: Sequence[AttemptState], *, now: float, last: str, brief: bool = False
) -> list[Sequence[str]]:
    """A table with titles, if there was more than one attempt; `last` says how the last one stands or how it ended.

    A recovery is shown with the attempt whose end it followed. A `brief` table has neither times of day nor hosts.
    """
    if len(attempts) < 2:
        return []
    followers = [*attempts[1:], None]
    rows = [_row(attempt, after, now, last) for attempt, after in zip(attempts, followers, strict=True)]
    earlier = attempts[0].number + len(rows[:-_MOST_ROWS])
    kept = [at for at, title in enumerate(_TITLES) if not (brief and title in ("BEGAN", "HOSTS"))]
    shown = [tuple(row[at] for at in kept) for row in (_TITLES, *rows[-_MOST_ROWS:])]
    return [shown[0], *([(count(earlier, "earlier attempt"),)] if earlier > 0 else []), *shown[1:]]


def _row(attempt: AttemptState, after: AttemptState | None, now: float, last: str) -> Sequence[str]:
    end = now if attempt.lost_at is None and after is None else attempt.lost_at
    reason = attempt.lost_to or ("" if after is not None else last)
    recovered = "" if after is None or after.recovery is None else took(after.recovery)
    listed = printable(",".join(attempt.hosts))
    return (
        str(attempt.number),
        moment(attempt.begin),
        "-" if end is None else took(end - attempt.begin),
        str(attempt.world_size),
        listed if len(listed) <= _LONGEST_HOSTS else count(len(attempt.hosts), "host"),
        ", ".join(filter(None, [recovered, swaps_text(after) if after is not None else ""])) or "-",
        cut(short_reason(reason), _LONGEST_REASON),
    )


def short_reason(reason: str) -> str:
    """What ended an attempt, in one line, without when."""
    line = one_line(reason)
    loss = _LOSS.fullmatch(line)
    return _AFTER_START.sub("", line) if loss is None else f"lost {loss[1]}: {loss[2]}"


def took(seconds: float) -> str:
    """`0.62 s`, `5.6 s`, `42 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(max(0.0, seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60} s"
    return f"{significant(max(0.0, seconds), 2)} s"


def swaps_text(attempt: AttemptState) -> str:
    """`d replaced b`; empty if no spare was needed."""
    return names([f"{printable(spare)} replaced {printable(lost)}" for spare, lost in attempt.swaps.items()], 4)

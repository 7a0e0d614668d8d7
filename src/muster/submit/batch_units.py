"""Times and memory sizes: read in one format, written in each scheduler's own."""

from __future__ import annotations

import re
from dataclasses import dataclass

from muster.errors import UsageError

_CLOCK = re.compile(r"(?:([0-9]{1,4})-)?([0-9]{1,5}):([0-5]?[0-9]):([0-5]?[0-9])")
_DAYS = re.compile(r"([0-9]{1,4})-([0-9]{1,5})(?::([0-5]?[0-9]))?")
_WORDS = re.compile(r"(?=.)(?:([0-9]{1,4})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,7})m)?(?:([0-9]{1,9})s)?", re.IGNORECASE)
_MEMORY = re.compile(r"([0-9]{1,9})([KMGT])(?:i?B)?", re.IGNORECASE)

DAY = 24 * 3600


def read_time(text: str) -> int:
    """Return the seconds in `1:30:00`, `2h`, `1h30m`, `1-12` (days-hours) or `1-00:00:00`.

    A plain number is refused, because it is minutes for Slurm and seconds for PBS.
    """
    for form in (_CLOCK, _DAYS, _WORDS):
        found = form.fullmatch(text.strip())
        if found:
            parts = (*found.groups(), None)[:4]
            day, hour, minute, second = (int(part or 0) for part in parts)
            break
    else:
        raise UsageError(f"--time {text}: invalid time", hint=_time_hint(text))
    seconds = day * DAY + hour * 3600 + minute * 60 + second
    if seconds == 0:
        raise UsageError(f"--time {text}: must be more than 0", hint="for example --time 2:00:00, 90m or 2h")
    return seconds


def _time_hint(text: str) -> str:
    if re.fullmatch(r"[0-9]+:[0-5][0-9]", text):
        # Schedulers read 2:00 as two minutes. A user who meant two hours would find out after hours in the queue.
        return f"write {text}:00 for hours and minutes, or 0:{text} for minutes and seconds"
    if re.fullmatch(r"[0-9]{1,7}", text.strip()):
        return f"add a unit: {text.strip()}m for minutes or {text.strip()}h for hours"
    return "for example 2:00:00, 90m, 2h or 1-12:00:00"


def clock(seconds: int) -> str:
    """Format seconds as `36:00:00`."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of one node; the unit is K, M, G or T."""

    amount: int
    unit: str


def read_memory(text: str) -> Memory:
    """Read `200G`, `512000M`, `200GB`. A plain number is refused, because schedulers differ in its unit."""
    found = _MEMORY.fullmatch(text.strip())
    if not found or int(found[1]) == 0:
        raise UsageError(f"--mem {text}: invalid size", hint="give the memory per node with a unit: 200G")
    return Memory(amount=int(found[1]), unit=found[2].upper())

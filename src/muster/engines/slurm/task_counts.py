"""One number for each host, in Slurm's short form: `2(x3),1` is 2, 2, 2, 1."""

from __future__ import annotations

import re

from muster.errors import UsageError
from muster.hosts.name_ranges import MAX_HOSTS

_PART = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def expand_counts(text: str, *, source: str) -> list[int]:
    """The numbers in a list such as SLURM_TASKS_PER_NODE, one for each host in the order of the node list."""
    counts: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        times = int(match[2] or 1) if match else 0
        if match is None or not 0 < times <= MAX_HOSTS - len(counts):
            raise UsageError(
                f"{source}={text} is no list of numbers: `{part}` is not understood",
                hint="Slurm writes one number for each host, such as `2(x3),1` for 2, 2, 2 and 1",
            )
        counts += [int(match[1])] * times
    return counts

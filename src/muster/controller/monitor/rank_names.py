"""How ranks are listed in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 16
"""Parts of a list that are shown."""


def numbers(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0, 1, 2`, `ranks 0-6, 8`."""
    listed = sorted(ranks)
    if len(listed) == 1:
        return f"rank {listed[0]}"
    parts: list[str] = []
    position = 0
    while position < len(listed):
        last = position
        while last + 1 < len(listed) and listed[last + 1] == listed[last] + 1:
            last += 1
        if last - position < 3:
            parts += [str(rank) for rank in listed[position : last + 1]]
        else:
            parts.append(f"{listed[position]}-{listed[last]}")
        position = last + 1
    return "ranks " + ", ".join(parts if len(parts) <= _MOST else [*parts[:_MOST], "…"])

"""Small pieces of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def count(number: int, noun: str) -> str:
    """`1 rank`, `4 ranks`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def names(items: Sequence[str]) -> str:
    """All of a few, or the first of many."""
    return ", ".join(items) if len(items) <= 8 else f"{', '.join(items[:6])} and {len(items) - 6} more"


def ranks(numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 1, 2`."""
    return ("rank " if len(numbers) == 1 else "ranks ") + names([str(number) for number in numbers])


def tilde(path: Path) -> str:
    """A path as a person would write it."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)

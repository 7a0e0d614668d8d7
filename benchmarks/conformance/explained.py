"""The differences between torchrun and Muster that are meant to be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A difference that has a reason."""

    lines: str
    """A pattern that each line of the difference matches."""
    why: str
    always: bool = True
    """Whether it shows in every run."""


EXPLAINED: dict[str, Explained] = {}
"""The programs that differ for a reason. Any other difference is a bug of Muster."""

"""Colors of a terminal: when to use them, and what they mean."""

from __future__ import annotations

import os

DIM = "2"
WARNING = "33"
"""Yellow."""
FAILURE = "1;31"
"""Bold red."""
ADVICE = "1;36"
"""Bold cyan: what to do."""

_RANKS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


def rank_color(rank: int) -> int:
    """The color of a rank's label, as a terminal numbers it."""
    return _RANKS[rank % len(_RANKS)]


def wants_color(is_terminal: bool) -> bool:
    """Whether to use colors: NO_COLOR forbids them, FORCE_COLOR wants them everywhere, else on a terminal only."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (is_terminal and not is_dumb())


def is_dumb() -> bool:
    """Whether the terminal, if it is one, understands no escape sequences."""
    return os.environ.get("TERM") == "dumb"


def painted(text: str, style: str) -> str:
    """The text in a style, given by the parameters of an escape sequence."""
    return f"\x1b[{style}m{text}\x1b[0m"

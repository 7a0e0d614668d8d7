"""What an agent can ask of a rank while its script runs."""

from __future__ import annotations

SIGNAL = 47
"""SIGRTMIN + 13: has a rank write its stacks without its interpreter's help; USR1 and USR2 belong to users."""

LOOK, STACKS = b"l", b"s"
"""What the agent may write to a rank: tell where you are; tell it with all stacks and the last collectives."""

MARK, MOVED = b"m", b"i"
"""Around SIGINT: note where the main thread is; tell whether it has moved since."""

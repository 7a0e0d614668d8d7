"""Requests that an agent can send to a rank while its script runs."""

from __future__ import annotations

SIGNAL = 47
"""SIGRTMIN + 13: makes a rank write stack traces without its interpreter; USR1 and USR2 are left to users."""

LOOK, STACKS = b"l", b"s"
"""Bytes that the agent writes to a rank: report your location; the same with stack traces and last collectives."""

MARK, MOVED = b"m", b"i"
"""Bytes sent around SIGINT: note where the main thread is; report whether it has moved since."""

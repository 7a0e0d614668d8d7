"""The session with an agent that one process hands over to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypedDict
else:
    from muster.shared.protocol import TypedDict


class HandedSession(TypedDict):
    """A session that continues in another process: how to resume it, lines each way, and an incomplete one."""

    name: str
    secret: str
    got: int
    sent: int
    kept: str
    """In base64, the lines that the agent has not acknowledged."""
    partial: str
    """In base64, the part of a line that has arrived."""

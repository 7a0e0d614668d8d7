"""The clock of an event loop moved on by hand: a limit is over when a test says so, on however busy a machine."""

from __future__ import annotations

import asyncio


async def move_on(seconds: float) -> None:
    """Let so many seconds pass for the timers of this loop, and let those that are due then do their work."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds
    for _ in range(3):
        await asyncio.sleep(0)

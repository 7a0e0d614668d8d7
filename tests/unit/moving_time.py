"""The clock of an event loop, advanced by hand: a timeout expires when a test says so, however busy the machine is."""

from __future__ import annotations

import asyncio


async def move_on(seconds: float) -> None:
    """Let so many seconds pass for the timers of this loop, and let those that are due then do their work."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds
    for _ in range(3):
        await asyncio.sleep(0)

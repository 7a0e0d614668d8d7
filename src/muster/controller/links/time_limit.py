"""Waiting for a reply with a limit that does not count the time during which nobody could answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_LEAST = 0.2
"""Seconds between two looks at whether the time has come."""


async def within(limit: float, future: asyncio.Future[Result], error: Exception, away: Callable[[], float]) -> Result:
    """Wait for a future, or raise `error` after `limit` seconds and as many as `away` has grown meanwhile.

    Not asyncio.wait_for, which up to Python 3.11 swallows a cancellation that coincides with the result.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit - away()

    def look() -> None:
        nonlocal timer
        left = deadline + away() - loop.time()
        if left > 0:
            timer = loop.call_later(max(left, _LEAST), look)
        elif not future.done():
            future.set_exception(error)

    timer = loop.call_later(limit, look)
    try:
        return await future
    finally:
        timer.cancel()

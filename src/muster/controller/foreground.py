"""A job that this process is there for alone: it takes the signals, and its ranks may read the stdin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from muster.controller.controller import Controller


def run_job(
    make: Callable[[], Controller], on_started: Callable[[], None] | None = None, *, stdin: bool = False
) -> int:
    """Run a controller, made inside it, in a fresh event loop; `on_started` is called when its ranks run.

    With `stdin` they may read that of this process.
    """

    async def main() -> int:
        controller = make()
        if stdin:
            controller.agents.give_stdin()
        controller.status.on_started = on_started
        controller.listen_to_signals()
        return (await controller.run()).exit_code

    return asyncio.run(main())

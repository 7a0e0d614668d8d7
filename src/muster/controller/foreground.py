"""A job that this process is there for alone: it takes the signals, and its ranks may read the stdin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from muster.controller.controller import Controller
from muster.controller.diagnosis.verdict import Verdict


def run_job(controller: Controller, on_started: Callable[[], None] | None = None, *, stdin: bool = False) -> Verdict:
    """Run a controller in a fresh event loop; `on_started` is called when its ranks run.

    With `stdin` they may read that of this process.
    """

    async def main() -> Verdict:
        if stdin:
            controller.agents.give_stdin()
        controller.status.on_started = on_started
        controller.listen_to_signals()
        return await controller.run()

    return asyncio.run(main())

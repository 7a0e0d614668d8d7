"""Makes hosts ready for the next run without running anything (`muster keep -H a,b`)."""

from __future__ import annotations

import asyncio
import shutil

from muster.api.prepared import Prepared
from muster.controller import prepare
from muster.controller.agents import Agents
from muster.controller.keep.kept_agents import KeptAgents
from muster.job import make_job_folder
from muster.output.screen import Screen
from muster.shared.wire import HEARTBEAT

_CLOSE_LIMIT = 5.0


def make_ready(prepared: Prepared, screen: Screen) -> None:
    """Start an agent and a zygote on every host, and leave them to the keeper."""
    folder = make_job_folder(prepared.job.id)
    try:
        asyncio.run(_make_ready(prepared, screen))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _make_ready(prepared: Prepared, screen: Screen) -> None:
    job, launch = prepared.job, prepared.launch
    folder = make_job_folder(job.id)
    agents = Agents(launch, folder, job.spec.lease, on_event=lambda link, event: None, on_text=screen.host_line)
    kept = KeptAgents(job.spec, launch, screen.info)
    beating = asyncio.ensure_future(_beat(agents))
    try:
        await agents.connect(job.id, lambda error: None, kept=kept)
        # Nothing is known about the directories of other hosts.
        folders = {link.name: job.spec.cwd if link.spec.here else "~" for link in agents.links}
        prepare.check_torch(agents.links)
        screen.info(prepare.what_is_done(job, len(agents.links)))
        await prepare.import_everywhere(job, agents.links, folders, screen)
        await kept.leave(agents.links, ())
    finally:
        beating.cancel()
        await agents.close(limit=_CLOSE_LIMIT)


async def _beat(agents: Agents) -> None:
    while True:
        agents.beat()
        await asyncio.sleep(HEARTBEAT)

"""Agents on all hosts for the time of a check: connected side by side, kept alive, sent away at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from muster.check.cluster_facts import Refusal
from muster.controller.agents import Agents
from muster.controller.links.link import AgentLink
from muster.engines.engine import Launch
from muster.errors import HostError, MusterError
from muster.shared.wire import HEARTBEAT

CONNECT_TIMEOUT = 5
"""Seconds ssh tries to connect to a host: half of what a job allows, since here a dead host is an answer."""

CONNECT_LIMIT = 15.0
"""Seconds until an agent must have answered over ssh: with the login and a slow home directory."""

QUEUE_LIMIT = 60.0
"""The same for agents that a scheduler starts."""

_CLOSE_LIMIT = 3.0


@dataclass
class Session:
    """The hosts that are up, one agent each, and those that are not."""

    links: list[AgentLink] = field(default_factory=list[AgentLink])
    refusals: list[Refusal] = field(default_factory=list[Refusal])


@asynccontextmanager
async def session(launch: Launch, job_id: str, folder: Path) -> AsyncGenerator[Session]:
    """Connect to every host, whatever becomes of the others, and leave nothing there afterwards."""
    agents = Agents(launch, folder, on_event=_ignore, on_text=_ignore)
    beating = asyncio.ensure_future(_beat(agents))
    failed: dict[str, HostError] = {}
    limit = CONNECT_LIMIT if launch.channel == "pipes" else QUEUE_LIMIT

    def on_failure(error: HostError) -> None:
        failed[error.host] = error

    try:
        try:
            await agents.connect(job_id, on_failure, limit=limit)
        except HostError as error:
            on_failure(error)
        except MusterError:
            if not failed:  # not the fault of some hosts, which are reported one by one
                raise
        yield Session(
            links=[link for link in agents.leaders if link.facts and not link.lost],
            refusals=[Refusal(name=name, why=error, spec=_spec(launch, name)) for name, error in failed.items()],
        )
    finally:
        beating.cancel()
        await agents.close(limit=_CLOSE_LIMIT)


async def _beat(agents: Agents) -> None:
    """An agent that hears nothing for five seconds ends itself."""
    while True:
        agents.beat()
        await asyncio.sleep(HEARTBEAT)


def _ignore(source: object, what: object) -> None:
    """A host that is lost fails the request that waits for it; what it prints is of no interest."""


def _spec(launch: Launch, name: str) -> str:
    """A host as `-H` reads it, without its slots."""
    host = next((agent.host for agent in launch.agents if name in (agent.name, agent.host.name)), None)
    return str(replace(host, slots=None, gpus=None)) if host else name

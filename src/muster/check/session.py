"""Agents on all hosts for the time of a check: connected side by side, kept alive, sent away at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from muster.check.cluster_facts import Refusal
from muster.controller.links.agent_package import agent_payload
from muster.controller.links.connector import make_connector
from muster.controller.links.link import AgentLink
from muster.engines.engine import Launch, leaders
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
    links = [AgentLink(agent, _ignore_event, _ignore_text) for agent in launch.agents]
    connector = make_connector(launch, folder, _ignore_text)
    ticking = asyncio.ensure_future(_tick(links))
    failed: dict[str, HostError] = {}
    try:
        payload = agent_payload(job_id, launch.engine.signals_from)
        limit = CONNECT_LIMIT if launch.channel == "pipes" else QUEUE_LIMIT

        def on_failure(error: HostError) -> None:
            failed[error.host] = error

        try:
            await connector.connect(links, payload, limit, on_failure)
        except HostError as error:
            failed[error.host] = error
        except MusterError:
            if not failed:  # not the fault of some hosts, which are told one by one
                raise
        speaking = [links[position] for position in leaders(launch.agents)]
        yield Session(
            links=[link for link in speaking if link.facts and not link.lost],
            refusals=[Refusal(name=name, why=error, spec=_spec(launch, name)) for name, error in failed.items()],
        )
    finally:
        ticking.cancel()
        await asyncio.gather(*(link.close(limit=_CLOSE_LIMIT) for link in links))
        await connector.close()


async def _tick(links: list[AgentLink]) -> None:
    """An agent that hears nothing for five seconds ends itself."""
    while True:
        for link in links:
            link.beat()
        await asyncio.sleep(HEARTBEAT)


def _ignore_event(link: AgentLink, event: dict[str, Any]) -> None:
    """A host that is lost fails the request that waits for it."""


def _ignore_text(source: str, text: str) -> None:
    """Words of a host outside any answer."""


def _spec(launch: Launch, name: str) -> str:
    """A host as `-H` reads it, without its slots."""
    host = next((agent.host for agent in launch.agents if name in (agent.name, agent.host.name)), None)
    return str(replace(host, slots=None, gpus=None)) if host else name

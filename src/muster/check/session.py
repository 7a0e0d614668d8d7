"""Agents on all hosts for the time of a check: connected side by side, kept alive, sent away at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from muster.check.cluster_facts import Refusal
from muster.controller.events import Event
from muster.controller.links.agent_package import agent_payload
from muster.controller.links.dialed import DialledConnector
from muster.controller.links.link import AgentLink
from muster.controller.links.piped import PipedConnector
from muster.engines.engine import Dialed, Engine, Piped, leaders
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
async def session(engine: Engine, job_id: str, folder: Path) -> AsyncGenerator[Session]:
    """Connect to every host, whatever becomes of the others, and leave nothing there afterwards."""
    links = [AgentLink(seat, _ignore_event, _ignore_text) for seat in engine.seats]
    connector = PipedConnector(engine) if isinstance(engine, Piped) else DialledConnector(engine, folder, _ignore_text)
    ticking = asyncio.ensure_future(_tick(links))
    failed: dict[str, HostError] = {}
    try:
        scheduler = engine.scheduler if isinstance(engine, Dialed) else ""
        limit = CONNECT_LIMIT if isinstance(engine, Piped) else QUEUE_LIMIT

        def on_failure(error: HostError) -> None:
            failed[error.host] = error

        try:
            await connector.connect(links, agent_payload(job_id, scheduler), limit, on_failure)
        except HostError as error:
            failed[error.host] = error
        except MusterError:
            if not failed:  # not the fault of some hosts, which are told one by one
                raise
        speaking = [links[position] for position in leaders(engine.seats)]
        yield Session(
            links=[link for link in speaking if link.facts and not link.lost],
            refusals=[Refusal(name=name, why=error, spec=_spec(engine, name)) for name, error in failed.items()],
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


def _ignore_event(link: AgentLink, event: Event) -> None:
    """A host that is lost fails the request that waits for it."""


def _ignore_text(source: str, text: str) -> None:
    """Words of a host outside any answer."""


def _spec(engine: Engine, name: str) -> str:
    """A host as `-H` reads it, without its slots."""
    host = next((seat.host for seat in engine.seats if name in (seat.name, seat.host.name)), None)
    return str(replace(host, slots=None, gpus=None)) if host else name

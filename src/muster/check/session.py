"""Agents on all hosts for the duration of a check: connected in parallel, kept alive, closed at the end."""

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
from muster.engines.kubernetes.pod_facts import PodFacts
from muster.errors import HostError, MusterError
from muster.shared.wire import HEARTBEAT

CONNECT_TIMEOUT = 5
"""Seconds ssh tries to connect to a host: half of what a job allows, since a dead host is a finding here."""

CONNECT_LIMIT = 15.0
"""Seconds until an agent must have answered over ssh, including login and a slow home directory."""

QUEUE_LIMIT = 60.0
"""The same for agents that a scheduler starts."""

_CLOSE_LIMIT = 3.0


@dataclass
class Session:
    """The hosts that answered, with one agent each, and the hosts that did not."""

    links: list[AgentLink] = field(default_factory=list[AgentLink])
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    pods: PodFacts | None = None
    """What the API server says, if the hosts are pods."""


@asynccontextmanager
async def session(launch: Launch, job_id: str, folder: Path) -> AsyncGenerator[Session]:
    """Connect to every host even if others fail, and leave nothing behind on them."""
    agents = Agents(launch, folder, on_event=_ignore, on_text=_ignore)
    beating = asyncio.ensure_future(_beat(agents))
    failed: dict[str, HostError] = {}
    limit = QUEUE_LIMIT if launch.channel == "dial-back" else CONNECT_LIMIT

    def on_failure(error: HostError) -> None:
        failed[error.host] = error

    try:
        try:
            await agents.connect(job_id, on_failure, limit=limit)
        except HostError as error:
            on_failure(error)
        except MusterError:
            if not failed:  # failed hosts are reported one by one
                raise
        yield Session(
            links=[link for link in agents.leaders if link.facts and not link.lost],
            refusals=[Refusal(name=name, why=error, spec=_spec(launch, name)) for name, error in failed.items()],
            pods=await _pods(agents),
        )
    finally:
        beating.cancel()
        await agents.close(limit=_CLOSE_LIMIT)


async def _pods(agents: Agents) -> PodFacts | None:
    if agents.launch.channel != "pods":
        return None
    from muster.controller.links.pod_links import PodConnector

    assert isinstance(agents.connector, PodConnector)
    return await agents.connector.pod_facts()


async def _beat(agents: Agents) -> None:
    """Keep the agents alive: one that receives nothing for five seconds exits."""
    while True:
        agents.beat()
        await asyncio.sleep(HEARTBEAT)


def _ignore(source: object, what: object) -> None:
    """Ignore events and output: a lost host fails the pending request, and nothing else matters here."""


def _spec(launch: Launch, name: str) -> str:
    """A host in the syntax of `-H`, without its slots."""
    host = next((agent.host for agent in launch.agents if name in (agent.name, agent.host.name)), None)
    return str(replace(host, slots=None, gpus=None)) if host else name

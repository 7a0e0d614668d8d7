"""Ask every host what the checks need to know."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from muster.check.cluster_facts import Machine, Wanted
from muster.check.definition import Check, as_requests
from muster.controller import prepare
from muster.controller.links.link import AgentLink, LinkLost
from muster.engines.engine import Launch
from muster.job import Job
from muster.shared.requests import Question

_log = logging.getLogger("muster.check")

_PINGS = 4
_BETWEEN_PINGS = 0.02

_ANSWER_LIMIT = 20.0
"""Seconds for all answers of a host; each probe also has its own, shorter timeout."""


async def gather(
    job: Job,
    links: Sequence[AgentLink],
    checks: Mapping[str, Check],
    wanted: Wanted,
    *,
    logins: Mapping[str, tuple[str, ...]],
) -> list[Machine]:
    """Run the probes on each host; a host whose connection breaks is left out."""
    requests = as_requests(checks)
    probes = {name: check.probe.__name__ for name, check in checks.items() if check.probe is not None}
    ranks = {link.name: prepare.settled(job, link)[0].slots or 1 for link in links}
    peers = {link.name: _addresses(link) for link in links}

    async def one(link: AgentLink) -> Machine | None:
        ask: Question = {
            "env": {**({} if link.spec.inherits else job.carried), **job.spec.env},
            "cwd": wanted.cwd,
            "script": wanted.script,
            "code": list(wanted.code),
            "master": wanted.master_addr,
            "paths": list(wanted.paths),
            "peers": {name: found for name, found in peers.items() if name != link.name},
        }
        try:
            reply = await link.request("probe", limit=_ANSWER_LIMIT, probes=requests, ask=ask)
            await _set_clock(link)
        except LinkLost:
            return None
        outcomes = {name: outcome for name, outcome in reply["answers"].items() if name in probes}
        for name, outcome in outcomes.items():
            if "error" in outcome:
                _log.error("%s: probe %s: %s\n%s", link.name, name, outcome["error"], outcome.get("traceback", ""))
        return Machine(
            name=link.name,
            up=link.facts,
            answers={probes[name]: out["value"] for name, out in outcomes.items() if "value" in out},
            seconds={name: out["seconds"] for name, out in outcomes.items() if "seconds" in out},
            hung={name: out["hung"] for name, out in outcomes.items() if "hung" in out},
            broken={name: out["error"] for name, out in outcomes.items() if "error" in out},
            ranks=ranks[link.name],
            inherits=link.spec.inherits,
            login=logins.get(link.name),
            tasks=link.spec.host.tasks,
            clock=link.clock_offset,
            clock_error=link.clock_error,
            noise=link.noise,
        )

    machines = await asyncio.gather(*(one(link) for link in links))
    return [machine for machine in machines if machine is not None]


async def _set_clock(link: AgentLink) -> None:
    """Compare clocks a few times, because the shortest round trip is the most accurate."""
    for _ in range(_PINGS):
        link.beat()
        await asyncio.sleep(_BETWEEN_PINGS)


def _addresses(link: AgentLink) -> list[str]:
    interfaces = link.facts["interfaces"]
    return [address for nic in interfaces if not nic["loopback"] for address in nic["addresses"]]


def logins_of(launch: Launch) -> dict[str, tuple[str, ...]]:
    """What to type before a command for each host; hosts of a scheduler may have no login."""
    ways = {command.agents[0].name: launch.engine.login(command) for command in launch.commands}
    return {name: way for name, way in ways.items() if way is not None}

"""Hosts test each other's addresses, and the host of rank 0 reserves a free port."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from muster.controller import addresses
from muster.controller.links.all_or_errors import all_or_errors
from muster.controller.links.link import AgentLink
from muster.errors import HostError
from muster.job import Job
from muster.output.screen import Screen
from muster.plan import Placement, Plan
from muster.shared.replies import Port
from muster.text import printable

_log = logging.getLogger("muster.rendezvous")


async def meet(job: Job, links: Sequence[AgentLink], plan: Plan, screen: Screen) -> Plan:
    """The plan with an address every host reaches, a reserved port, and network interfaces where they matter."""
    offers = await _offers(job, links)
    meeting = await _try(job, links, offers, _master(job, links[0], screen))
    whom = "store" if plan.has_store else "rank 0"
    held = await links[0].request("hold", limit=10, whom=whom)  # the others stop listening when they start ranks
    for name, interface in meeting.interfaces.items():
        screen.info(f"{name}: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME are {interface} ({meeting.reasons[name]})")
    user_env = {**job.carried, **job.spec.env}
    placements = [_with_interface(place, meeting.interfaces.get(place.name), user_env) for place in plan.placements]
    return replace(plan, placements=tuple(placements)).at(meeting.master_addr, held["port"])


async def another_port(job: Job, link: AgentLink, plan: Plan) -> Plan:
    """A new port for a restart: the old one may still be busy with connections of the last attempt."""
    port = job.spec.master_port or 0
    answer = await link.request("another_port", limit=10, port=port)
    if answer["problem"]:
        raise _port_taken(link.name, port, answer)
    return plan.at(plan.master_addr, answer["port"])


async def _offers(job: Job, links: Sequence[AgentLink]) -> list[addresses.Offer]:
    """Let every host listen; the first host, where rank 0 runs, on the master port."""
    port = job.spec.master_port or 0
    nonces = [secrets.token_hex(8) for _ in links]
    answers = await all_or_errors(
        [
            link.request("listen", limit=15, port=port if link is links[0] else 0, nonce=nonce)
            for link, nonce in zip(links, nonces, strict=True)
        ]
    )
    offers: list[addresses.Offer] = []
    for link, nonce, answer in zip(links, nonces, answers, strict=True):
        if answer["problem"]:
            raise _port_taken(link.name, port, answer)
        offers.append(
            addresses.Offer(
                name=link.name,
                interfaces=link.facts["interfaces"],
                own_name=answer["own_name"],
                port=answer["port"],
                nonce=nonce,
            )
        )
    return offers


def _master(job: Job, first: AgentLink, screen: Screen) -> str | None:
    """The address that the user chose for rank 0, unless another host runs it since the first host was lost."""
    if job.spec.master_addr and first.spec.host.name != job.hosts[0].name:
        screen.warning(f"--master-addr {job.spec.master_addr} is not used, because rank 0 runs on {first.name} now")
        return None
    return job.spec.master_addr


async def _try(
    job: Job, links: Sequence[AgentLink], offers: Sequence[addresses.Offer], master: str | None
) -> addresses.Meeting:
    """Let the hosts dial each other, and choose from the results."""
    interface = job.spec.interface
    if len(offers) == 1 and master is None:
        return addresses.alone(offers[0], interface=interface)
    if len(offers) == 1 and master is not None:
        answer = await links[0].request("dial", limit=20, targets=[offers[0].target(master)])
        addresses.check_users_master(offers[0], master, {links[0].name: answer["results"]})
        return replace(addresses.alone(offers[0], interface=interface), master_addr=master)
    plans = [
        addresses.dial_targets(offers, peers, interface=interface, master=master)
        for peers in addresses.who_dials_whom(len(offers))
    ]
    answers = await all_or_errors(
        [link.request("dial", limit=20, targets=targets) for link, targets in zip(links, plans, strict=True)]
    )
    tried = {link.name: answer["results"] for link, answer in zip(links, answers, strict=True)}
    for name, results in tried.items():
        reached = ", ".join(f"{found['address']} {found['problem'] or 'reached'}" for found in results)
        _log.debug("%s dialed %s", name, reached or "nobody")
    return addresses.choose(offers, tried, interface=interface, master=master)


def _with_interface(placement: Placement, interface: str | None, user_env: Mapping[str, str]) -> Placement:
    if interface is None:
        return placement
    wanted = [name for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name not in user_env]
    return replace(placement, env={**placement.env, **dict.fromkeys(wanted, interface)})


def _port_taken(host: str, port: int, answer: Port) -> HostError:
    why = printable(answer["problem"]).lower()
    if "permission" in why:
        hint = "use a port above 1023, or omit --master-port, and Muster finds a free port"
        return HostError(host, f"not allowed to listen on port {port} ({why})", hint=hint)
    owner = f" by {printable(answer['owner'])}" if answer["owner"] else ""
    return HostError(
        host,
        f"port {port} is already in use{owner} ({why})",
        hint="omit --master-port, and Muster finds a free port",
    )

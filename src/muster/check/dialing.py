"""Test connections between hosts on real ports, in both directions, and keep every result."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from muster.check.cluster_facts import Reach, Wanted
from muster.controller.addresses import Offer, dial_targets, who_dials_whom
from muster.controller.links.all_or_errors import all_or_errors
from muster.controller.links.link import AgentLink, LinkLost
from muster.shared.replies import DialResult, Listening
from muster.shared.requests import DialTarget

_LISTEN_LIMIT = 10.0
_DIAL_LIMIT = 15.0


async def dial_all(links: Sequence[AgentLink], wanted: Wanted) -> Reach | None:
    """Test every pair of hosts on an ephemeral port, as gloo and NCCL do, and the master port if the user chose one."""
    if not links or (len(links) == 1 and wanted.master_port is None and wanted.master_addr is None):
        return None
    try:
        nonces = [secrets.token_hex(8) for _ in links]
        answers = await all_or_errors([_listen(link, 0, nonce) for link, nonce in zip(links, nonces, strict=True)])
        offers = [_offer(*one) for one in zip(links, nonces, answers, strict=True)]
        interface = _usable(wanted.interface, offers)
        master = None if wanted.master_port else wanted.master_addr
        everybody = who_dials_whom(len(offers))
        tried = await _dial(
            links, [dial_targets(offers, peers, interface=interface, master=master) for peers in everybody]
        )
        await _stop_listening(links)
        reach = Reach(offers=tuple(offers), tried=tried)
        return reach if wanted.master_port is None else await _try_master(links, wanted, wanted.master_port, reach)
    except LinkLost:
        return None  # the lost host is reported elsewhere


async def _try_master(links: Sequence[AgentLink], wanted: Wanted, port: int, reach: Reach) -> Reach:
    """Test whether the port that rank 0 will open is free and reachable."""
    first, *others = links
    nonce = secrets.token_hex(8)
    answer = await _listen(first, port, nonce)
    if answer["problem"]:
        return replace(reach, port_problem=answer["problem"].lower(), port_owner=answer["owner"])
    offers = [_offer(first, nonce, answer), *reach.offers[1:]]
    targets = dial_targets(offers, [0], interface=wanted.interface, master=wanted.master_addr)
    dialers = others or links
    master = await _dial(dialers, [targets] * len(dialers))
    await _stop_listening([first])
    return replace(reach, master=master)


def _listen(link: AgentLink, port: int, nonce: str) -> Awaitable[Listening]:
    return link.request("listen", limit=_LISTEN_LIMIT, port=port, nonce=nonce)


def _offer(link: AgentLink, nonce: str, answer: Listening) -> Offer:
    return Offer(
        name=link.name,
        interfaces=link.facts["interfaces"],
        own_name=answer["own_name"],
        port=answer["port"],
        nonce=nonce,
    )


async def _dial(links: Sequence[AgentLink], targets: Sequence[list[DialTarget]]) -> dict[str, list[DialResult]]:
    answers = await all_or_errors(
        [link.request("dial", limit=_DIAL_LIMIT, targets=own) for link, own in zip(links, targets, strict=True)]
    )
    return {link.name: answer["results"] for link, answer in zip(links, answers, strict=True)}


async def _stop_listening(links: Sequence[AgentLink]) -> None:
    await all_or_errors([link.request("hold", limit=_LISTEN_LIMIT, whom="") for link in links])


def _usable(interface: str | None, offers: Sequence[Offer]) -> str | None:
    """The interface the user chose, if every host has it; otherwise the check `interface` reports it."""
    has = all(any(nic["name"] == interface and nic["addresses"] for nic in offer.interfaces) for offer in offers)
    return interface if has else None

"""Hosts dial each other on real ports, in both directions; every outcome is kept."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from muster.check.cluster_facts import Reach, Wanted
from muster.controller.addresses import Offer, dial_targets, who_dials_whom
from muster.controller.links.link import AgentLink, LinkLost, all_or_errors
from muster.shared.replies import DialResult

_LISTEN_LIMIT = 10.0
_DIAL_LIMIT = 15.0

Results = dict[str, Sequence[DialResult]]


async def dial_all(links: Sequence[AgentLink], wanted: Wanted) -> Reach | None:
    """Try every pair of hosts on a port the kernel chose, as gloo and NCCL do, and the master port if one is wanted."""
    try:
        offers = await _listen(links, 0)
        tried = await _dial(links, offers, wanted, master=None if wanted.master_port else wanted.master_addr)
        await _hush(links)
        if wanted.master_port is None:
            return Reach(offers=tuple(offers), tried=tried)
        return await _try_master(links, wanted, Reach(offers=tuple(offers), tried=tried))
    except LinkLost:
        return None  # the host that was lost is told elsewhere


async def _try_master(links: Sequence[AgentLink], wanted: Wanted, reach: Reach) -> Reach:
    """The port that rank 0 will open: is it free, and does it lead there?"""
    first = links[0]
    nonce = secrets.token_hex(8)
    answer = await first.request("listen", limit=_LISTEN_LIMIT, port=wanted.master_port or 0, nonce=nonce)
    if answer["problem"]:
        return Reach(
            offers=reach.offers, tried=reach.tried, port_problem=answer["problem"].lower(), port_owner=answer["owner"]
        )
    offer = Offer(
        name=first.name,
        interfaces=first.facts["interfaces"],
        own_name=answer["own_name"],
        port=answer["port"],
        nonce=nonce,
    )
    offers = [offer, *reach.offers[1:]]
    targets = dial_targets(offers, [0], interface=wanted.interface, master=wanted.master_addr)
    others = links[1:] or links
    answers = await all_or_errors([link.request("dial", limit=_DIAL_LIMIT, targets=targets) for link in others])
    await _hush([first])
    master = {link.name: answer["results"] for link, answer in zip(others, answers, strict=True)}
    return Reach(offers=reach.offers, tried=reach.tried, master=master)


async def _listen(links: Sequence[AgentLink], port: int) -> list[Offer]:
    nonces = [secrets.token_hex(8) for _ in links]
    answers = await all_or_errors(
        [
            link.request("listen", limit=_LISTEN_LIMIT, port=port, nonce=nonce)
            for link, nonce in zip(links, nonces, strict=True)
        ]
    )
    return [
        Offer(
            name=link.name,
            interfaces=link.facts["interfaces"],
            own_name=answer["own_name"],
            port=answer["port"],
            nonce=nonce,
        )
        for link, nonce, answer in zip(links, nonces, answers, strict=True)
    ]


async def _dial(links: Sequence[AgentLink], offers: Sequence[Offer], wanted: Wanted, *, master: str | None) -> Results:
    plans = [
        dial_targets(offers, peers, interface=_usable(wanted.interface, offers), master=master)
        for peers in who_dials_whom(len(offers))
    ]
    answers = await all_or_errors(
        [link.request("dial", limit=_DIAL_LIMIT, targets=targets) for link, targets in zip(links, plans, strict=True)]
    )
    return {link.name: answer["results"] for link, answer in zip(links, answers, strict=True)}


async def _hush(links: Sequence[AgentLink]) -> None:
    """Close the ports again."""
    await all_or_errors([link.request("hold", limit=_LISTEN_LIMIT, whom="") for link in links])


def _usable(interface: str | None, offers: Sequence[Offer]) -> str | None:
    """The interface the user chose, if every host has it; where one lacks it, a check says so."""
    has = all(any(nic["name"] == interface and nic["addresses"] for nic in offer.interfaces) for offer in offers)
    return interface if has else None

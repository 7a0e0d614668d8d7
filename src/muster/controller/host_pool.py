"""The hosts of a job and what each is used for: which run ranks, which are spare, which are lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from muster.plan import Plan
from muster.text import count, rank_list

Standing = Literal["ready", "away", "retired"]
"""ready: its agent is up and has imported torch; away: no agent; retired: it must not run ranks any more (bad hardware,
or it is draining), although its agent may be up."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One host of the job."""

    name: str
    slots: int
    """Ranks it runs, or would run as a spare."""
    standing: Standing = "ready"
    why: str = ""
    """Why it is away or retired."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A place in the order of the ranks, and the host that runs the ranks there."""

    place: int
    """Position among the hosts of the whole job; it stays the same when another host takes the seat."""
    host: str
    slots: int


@dataclass(frozen=True, kw_only=True)
class Seating:
    """The hosts of the next attempt in the order of their ranks, and how they differ from those of the last one."""

    seats: tuple[Seat, ...]
    swaps: tuple[tuple[str, str], ...] = ()
    """Pairs of a missing host and the spare that takes its place, so that all other ranks keep their numbers."""
    dropped: tuple[str, ...] = ()
    """Hosts that are missing without a replacement."""


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """No attempt can start now, because nothing replaces these hosts."""

    missing: tuple[str, ...]


def first_seats(members: Sequence[Member], spares: int) -> tuple[Seat, ...]:
    """The seats of the whole job: all hosts except the last `spares`."""
    used = members[: len(members) - spares]
    return tuple(Seat(place=place, host=member.name, slots=member.slots) for place, member in enumerate(used))


def next_seating(
    members: Sequence[Member],
    seats: Sequence[Seat],
    *,
    whole: Sequence[Seat],
    min_hosts: int | None = None,
    grow: bool = False,
) -> Seating | Shortage:
    """Choose the hosts of the next attempt; `seats` are those of the last one, `whole` those of the whole job.

    A ready host keeps its seat; a spare with enough slots takes the seat of a missing one. With `min_hosts`, seats that
    nobody can take are left out; with `grow`, seats that were left out before are filled again.
    """
    ready = {member.name: member for member in members if member.standing == "ready"}
    last = {seat.place: seat for seat in seats}
    wanted = [last.get(seat.place, seat) for seat in whole if grow or seat.place in last]
    found = {seat.place: seat for seat in wanted if seat.host in ready and ready[seat.host].slots >= seat.slots}
    taken = {seat.host for seat in found.values()}
    swaps: list[tuple[str, str]] = []
    dropped: list[str] = []
    for seat in wanted:
        if seat.place in found:
            continue
        spare = next((m for m in ready.values() if m.name not in taken and m.slots >= seat.slots), None)
        if spare is None:
            dropped.append(seat.host)
        else:
            taken.add(spare.name)
            found[seat.place] = replace(seat, host=spare.name)
            swaps.append((seat.host, spare.name))
    if dropped and (min_hosts is None or len(found) < min_hosts):
        return Shortage(missing=tuple(dropped))
    chosen = tuple(found[seat.place] for seat in wanted if seat.place in found)
    return Seating(seats=chosen, swaps=tuple(swaps), dropped=tuple(dropped))


def spares_of(members: Sequence[Member], seats: Sequence[Seat]) -> tuple[Member, ...]:
    """The ready hosts that run no ranks."""
    used = {seat.host for seat in seats}
    return tuple(member for member in members if member.standing == "ready" and member.name not in used)


def what_changes(swaps: Sequence[tuple[str, str]], before: Plan, after: Plan, min_hosts: int | None) -> str:
    """How the hosts of the next attempt differ from those of the last one; empty if they are the same."""
    ranks = {place.name: place.ranks for place in before.placements}
    parts: list[str] = []
    for old, new in swaps:
        where = f" ({rank_list(ranks[old])})" if old in ranks else ""
        parts.append(f"spare {new} replaces {old}{where}")
    hosts, sizes = count(len(after.placements), "host"), f"world size {before.world_size} -> {after.world_size}"
    if after.world_size < before.world_size:
        parts.append(f"{hosts} left, {sizes} (--min-hosts {min_hosts})")
    elif after.world_size > before.world_size:
        parts.append(f"{hosts} again, {sizes}")
    return "; ".join(parts)

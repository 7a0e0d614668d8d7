"""Why ranks that have all called `init_process_group` do not find each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from muster.controller.monitor.observation import Seen
from muster.shared.reports import Meeting
from muster.text import rank_list

_MANY = 8

_ADVICE = "do not set MASTER_ADDR, MASTER_PORT or init_method; Muster gives all ranks the same address"

_OWN_HOST = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", "::1", "0.0.0.0", "::")
"""Names that each host resolves to itself, besides 127.*."""

_T = TypeVar("_T")


def why_apart(ranks: Mapping[int, Seen]) -> str:
    """Why the ranks do not find each other; empty if their arguments do not explain it."""
    meetings = {rank: seen.meeting for rank, seen in ranks.items() if seen.meeting is not None and seen.meeting["at"]}
    if len(meetings) < len(ranks):
        return ""  # the missing ranks may have ended, may not answer, or may use a store of their own
    return _places(ranks, meetings) or _sizes(meetings) or _claims(meetings) or _all_right(meetings)


def _places(ranks: Mapping[int, Seen], meetings: Mapping[int, Meeting]) -> str:
    """Compare the addresses; rank 0 listens on all addresses of its host, so of its own only the port matters."""
    first = next((rank for rank, meeting in meetings.items() if meeting["rank"] == 0), None)
    if len(_alike({rank: _port(meeting["at"]) for rank, meeting in meetings.items()})) > 1:
        where = _listed({rank: meeting["at"] for rank, meeting in meetings.items()})
        return f"they use different rendezvous addresses: {where}; {_ADVICE}"
    others = {rank: meeting["at"] for rank, meeting in meetings.items() if rank != first}
    if any(place.startswith("file:") for place in others.values()):
        hosts = {seen.host for seen in ranks.values()}
        path = next(iter(others.values())).removeprefix("file://")
        return f"they meet in the file {path}, which must be on a shared file system" if len(hosts) > 1 else ""
    home = ranks[first].host if first is not None else None
    alone = {rank: at for rank, at in others.items() if home and ranks[rank].host != home and _is_own_host(at)}
    if alone:
        look, own = ("look", "their") if len(alone) > 1 else ("looks", "its")
        at = ", ".join(sorted(set(alone.values()))[:_MANY])
        return f"{rank_list(alone)} {look} for rank 0 on {own} own host, at {at}, but rank 0 is on {home}; {_ADVICE}"
    if len(set(others.values())) > 1:
        return f"they use different addresses for rank 0: {_listed(others)}; {_ADVICE}"
    return ""


def _sizes(meetings: Mapping[int, Meeting]) -> str:
    sizes = _alike({rank: meeting["size"] for rank, meeting in meetings.items() if meeting["size"] is not None})
    if len(sizes) > 1:
        expected = ", ".join(f"{size} ({rank_list(members)})" for size, members in list(sizes.items())[:_MANY])
        return f"they expect different world sizes: {expected}{', …' if len(sizes) > _MANY else ''}"
    size = next(iter(sizes), len(meetings))
    return f"they expect {size} ranks, but this job has {len(meetings)}" if size != len(meetings) else ""


def _claims(meetings: Mapping[int, Meeting]) -> str:
    claims = _alike({rank: meeting["rank"] for rank, meeting in meetings.items() if meeting["rank"] is not None})
    for claim, members in claims.items():
        if len(members) > 1:
            return f"{rank_list(members)} all call init_process_group as rank {claim}"
    return ""


def _all_right(meetings: Mapping[int, Meeting]) -> str:
    place = next((meeting["at"] for meeting in meetings.values() if meeting["rank"] != 0), "")
    where = f" and look for each other at {place}" if place else ""
    return f"all {len(meetings)} have called it{where}; the network or the backend is blocking them, not a rank"


def _port(place: str) -> str:
    """The part of an address that must be the same on all ranks, whatever they call the host."""
    return place if place.startswith("file:") else place.rpartition(":")[2]


def _is_own_host(place: str) -> bool:
    host = place.rpartition(":")[0].strip("[]")
    return host in _OWN_HOST or host.startswith("127.")


def _listed(places: Mapping[int, str]) -> str:
    """`rank 0 at a:1, ranks 1, 2 at b:1`."""
    alike = _alike(places)
    some = ", ".join(f"{rank_list(members)} at {place}" for place, members in list(alike.items())[:_MANY])
    return f"{some}, …" if len(alike) > _MANY else some


def _alike(values: Mapping[int, _T]) -> dict[_T, list[int]]:
    """Group ranks by equal values."""
    found: dict[_T, list[int]] = {}
    for rank, value in values.items():
        found.setdefault(value, []).append(rank)
    return found

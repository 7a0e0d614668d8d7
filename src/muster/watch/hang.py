"""Who keeps a job from going on: compares what each rank has called, and follows who waits for whom. Pure.

A rank waits in a collective that it has called and that has not finished; for the members of that group that have not
called it. They may wait themselves, for others, so the chain is followed to ranks that wait for nobody: those are the
cause. Where the chain runs in a circle, or all have called the same, nobody is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from muster.watch.seen import Call, Group, Seen

DEFAULT = "0"
"""The name of the group of all ranks."""

_SAME_SIZES = ("all_reduce", "allreduce", "broadcast", "reduce", "all_gather_base", "reduce_scatter_base", "barrier")
"""Operations that need the same sizes and types on all ranks; others may differ by design."""


_FOR_ALL = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group")
"""Calls that are not recorded and that wait for other ranks, nobody can see for which."""

_ACTIVE = 10.0
"""Switches a second above which a main thread does not wait in one single call."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A rank that waits."""

    rank: int
    kind: Literal["collective", "peer", "joining", "call"]
    group: str = ""
    members: tuple[int, ...] = ()
    call: Call | None = None
    peer: int | None = None
    """The rank it sends to or receives from."""
    blockers: tuple[int, ...] = ()
    """The ranks it waits for, as far as that is known."""

    @property
    def is_for_anybody(self) -> bool:
        """Whether it may be for others than those that are known."""
        if self.kind == "collective" and self.members:
            return False  # where all have called it, it is for none of them
        return self.kind == "call" or not self.blockers


@dataclass(frozen=True, kw_only=True)
class Differing:
    """Ranks that called something else under the same number."""

    group: str
    members: tuple[int, ...]
    number: int
    calls: Mapping[int, Call]
    odd: tuple[int, ...]
    """Those in the minority; empty where there is none."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Why nothing moves."""

    waits: tuple[Wait, ...]
    culprits: tuple[int, ...] = ()
    differing: Differing | None = None
    circle: tuple[int, ...] = ()
    """Ranks that wait for each other."""


def judge(ranks: Mapping[int, Seen]) -> Finding | None:
    """Why the job stands still; None where no rank waits for another, or one that may be waited for still works."""
    waits = [wait for rank in ranks.values() if rank.exit_status is None and (wait := wait_of(rank, ranks))]
    if not waits:
        return None
    differing = next((found for wait in waits if (found := find_differing(wait, ranks))), None)
    if differing is not None:
        return Finding(waits=tuple(waits), culprits=differing.odd, differing=differing)
    waiting = {wait.rank: wait for wait in waits}
    roots = _roots(waiting, ranks)
    if _that_work(waiting, roots, ranks):
        return None
    if roots:
        return Finding(waits=tuple(waits), culprits=roots)
    return Finding(waits=tuple(waits), circle=_circle(waiting))


def working(ranks: Mapping[int, Seen]) -> tuple[tuple[Wait, ...], tuple[int, ...]]:
    """Who waits, and which of those they wait for still work."""
    running = [seen for seen in ranks.values() if seen.exit_status is None]
    waiting = {seen.rank: wait for seen in running if (wait := wait_of(seen, ranks))}
    return tuple(waiting.values()), _that_work(waiting, _roots(waiting, ranks), ranks)


def _that_work(waiting: Mapping[int, Wait], roots: Sequence[int], ranks: Mapping[int, Seen]) -> tuple[int, ...]:
    """Those of the ranks that are waited for, or may be, that still work.

    Whom a call waits for that nobody records cannot be seen: it may be any rank that does not wait itself.
    """
    if any(wait.is_for_anybody for wait in waiting.values()):
        roots = [rank for rank in sorted(ranks) if rank not in waiting and ranks[rank].exit_status is None]
    seen = [ranks[rank] for rank in roots]
    return tuple(one.rank for one in seen if one.works and not one.holds_lock and not one.is_stopped)


def wait_of(seen: Seen, ranks: Mapping[int, Seen]) -> Wait | None:
    """What a rank waits for, if it waits for other ranks."""
    if seen.is_stopped or seen.holds_lock:
        return None  # whatever it is in, it is what keeps it from going on
    if seen.joining:
        late = [other.rank for other in ranks.values() if not other.joining and not _has_joined(other)]
        return Wait(rank=seen.rank, kind="joining", members=tuple(ranks), blockers=tuple(late))
    pending = [(name, group, call) for name, group in (seen.groups or {}).items() if (call := group.pending)]
    if pending:
        # Of several groups the one it called last is where it is likely to wait.
        name, group, call = max(pending, key=lambda item: item[2].time)
        members = group.ranks or (tuple(sorted(ranks)) if name == DEFAULT else ())
        late = _late([ranks[rank] for rank in members if rank in ranks and rank != seen.rank], name, call.number)
        return Wait(rank=seen.rank, kind="collective", group=name, members=members, call=call, blockers=late)
    # Calls that no recorder counts may be many short ones: then the main thread runs again and again.
    if seen.switches > _ACTIVE:
        return None
    recorded = tuple(peer for group in (seen.groups or {}).values() for peer in group.peers)
    peers = recorded if seen.peer is None else (seen.peer,)
    if peers:
        return Wait(rank=seen.rank, kind="peer", peer=peers[0], blockers=tuple(peer for peer in peers if peer in ranks))
    if seen.blocking_call and not seen.works:
        late = _only_free_rank(ranks) if seen.blocking_call in _FOR_ALL else ()
        return Wait(rank=seen.rank, kind="call", blockers=late)
    return None


def _only_free_rank(ranks: Mapping[int, Seen]) -> tuple[int, ...]:
    """The one rank that is in no call of torch.distributed, if it is the only one: of several, some are not needed."""
    free = [
        seen.rank
        for seen in ranks.values()
        if seen.exit_status is None
        and not seen.blocking_call
        and not any(group.pending for group in (seen.groups or {}).values())
    ]
    return tuple(free) if len(free) == 1 else ()


def _has_joined(seen: Seen) -> bool:
    return bool(seen.groups) or seen.answered is not None or seen.exit_status is not None


def _late(members: Sequence[Seen], group: str, number: int) -> tuple[int, ...]:
    """The members of a group that keep a collective from finishing: they have not called it, or are stopped in it."""
    late = [seen.rank for seen in members if seen.is_stopped or _has_called(seen, group, number) is False]
    if late:
        return tuple(late)
    # All that can tell have called it: then it is one of those that cannot.
    return tuple(seen.rank for seen in members if _has_called(seen, group, number) is None)


def _has_called(seen: Seen, group: str, number: int) -> bool | None:
    """Whether a rank has called a collective; None where that is not known."""
    if seen.groups is not None:
        return group in seen.groups and seen.groups[group].called >= number
    if group != DEFAULT or seen.begun is None:
        return None
    return True if seen.begun >= number and seen.exit_status is None else False if seen.begun < number else None


def _roots(waiting: Mapping[int, Wait], ranks: Mapping[int, Seen]) -> tuple[int, ...]:
    """The ranks at the ends of all chains of waiting."""
    found: set[int] = set()
    for wait in waiting.values():
        found.update(rank for rank in wait.blockers if rank in ranks and rank not in waiting)
    return tuple(sorted(found))


def _circle(waiting: Mapping[int, Wait]) -> tuple[int, ...]:
    """Ranks that wait for each other, if some do."""
    for begin in waiting:
        path: list[int] = []
        rank: int | None = begin
        while rank is not None and rank not in path:
            path.append(rank)
            rank = next((other for other in waiting[rank].blockers if other in waiting), None)
        if rank is not None:
            return tuple(sorted(path[path.index(rank) :]))
    return ()


def find_differing(wait: Wait, ranks: Mapping[int, Seen]) -> Differing | None:
    """The first number under which members of a waiting rank's group called different things."""
    if wait.kind != "collective":
        return None
    recorded = _recorded(wait.group, wait.members, ranks)
    # What has finished everywhere did no harm.
    numbers = {call.number for group in recorded.values() for call in group.calls if not call.over}
    return _compare(wait.group, wait.members, numbers, recorded)


def last_calls_differ(ranks: Mapping[int, Seen]) -> Differing | None:
    """Whether ranks called different things just before one failed, as far as they could still tell."""
    for seen in ranks.values():
        for name, group in (seen.groups or {}).items():
            members = group.ranks or (tuple(sorted(ranks)) if name == DEFAULT else ())
            recorded = _recorded(name, members, ranks)
            last = max((other.called for other in recorded.values()), default=0)
            found = _compare(name, members, {last - 1, last}, recorded)
            if found is not None:
                return found
    return None


def _recorded(group: str, members: Sequence[int], ranks: Mapping[int, Seen]) -> dict[int, Group]:
    return {
        rank: found
        for rank in members
        if rank in ranks and (found := (ranks[rank].groups or {}).get(group)) is not None
    }


def _compare(name: str, members: Sequence[int], numbers: Set[int], recorded: Mapping[int, Group]) -> Differing | None:
    for number in sorted(numbers):
        calls = {rank: call for rank, group in recorded.items() if (call := group.call(number)) is not None}
        kinds: dict[object, list[int]] = {}
        for rank, call in calls.items():
            kinds.setdefault(_kind(call), []).append(rank)
        if len(kinds) > 1:
            largest = max(map(len, kinds.values()))
            common = [members for members in kinds.values() if len(members) == largest]
            odd = [rank for members in kinds.values() if members is not common[0] for rank in members]
            return Differing(
                group=name,
                members=tuple(members),
                number=number,
                calls=calls,
                odd=tuple(sorted(odd)) if len(common) == 1 else (),
            )
    return None


def _kind(call: Call) -> object:
    """What must be alike."""
    return (call.op, call.sizes, call.types) if call.op in _SAME_SIZES else call.op

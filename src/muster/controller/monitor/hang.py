"""Hang detection: compares what each rank has called, and follows which rank waits for which. Pure.

A rank that has called an unfinished collective waits for the members of that group that have not called it. Those may
wait for other ranks in turn, so the chain is followed to the ranks that wait for nobody: they are the cause. If the
chain is a cycle, or all ranks have made the same call, no rank is blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from muster.controller.monitor.observation import Call, Group, Seen

DEFAULT = "0"
"""The name of the default group, which contains all ranks."""

_SAME_SIZES = ("all_reduce", "allreduce", "broadcast", "reduce", "all_gather_base", "reduce_scatter_base", "barrier")
"""Operations whose sizes and types must be the same on all ranks; for others they may differ by design."""


_FOR_ALL = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group")
"""Calls that wait for other ranks but are not recorded, so it is unknown for which."""

_ACTIVE = 10.0
"""Context switches per second above which a main thread is not blocked in a single call."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A rank that waits for others."""

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
        """Whether it may wait for ranks other than the known blockers."""
        if self.kind == "collective" and self.members:
            return False  # if all members have called it, it waits for none of them
        return self.kind == "call" or not self.blockers


@dataclass(frozen=True, kw_only=True)
class Differing:
    """Ranks that called different collectives under the same number."""

    group: str
    members: tuple[int, ...]
    number: int
    calls: Mapping[int, Call]
    odd: tuple[int, ...]
    """The ranks in the minority; empty if there is no majority."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Why the job makes no progress."""

    waits: tuple[Wait, ...]
    culprits: tuple[int, ...] = ()
    differing: Differing | None = None
    circle: tuple[int, ...] = ()
    """Ranks that wait for each other."""


def judge(ranks: Mapping[int, Seen]) -> Finding | None:
    """Why the job hangs; None if no rank waits for another, or if a rank that others may wait for is working."""
    asked = _Questions(ranks)
    waiting = _waiting(asked)
    if not waiting:
        return None
    waits = tuple(waiting.values())
    differing = next((found for wait in waits if (found := _find_differing(wait, asked))), None)
    if differing is not None:
        return Finding(waits=waits, culprits=differing.odd, differing=differing)
    roots = _roots(waiting, ranks)
    if _that_work(waiting, roots, ranks):
        return None
    if roots:
        return Finding(waits=waits, culprits=roots)
    return Finding(waits=waits, circle=_circle(waiting))


def working(ranks: Mapping[int, Seen]) -> tuple[tuple[Wait, ...], tuple[int, ...]]:
    """The ranks that wait, and the working ranks that they wait for."""
    waiting = _waiting(_Questions(ranks))
    return tuple(waiting.values()), _that_work(waiting, _roots(waiting, ranks), ranks)


def _that_work(waiting: Mapping[int, Wait], roots: Sequence[int], ranks: Mapping[int, Seen]) -> tuple[int, ...]:
    """The working ranks that others wait for, or may wait for.

    An unrecorded call may wait for any rank that does not wait itself.
    """
    if any(wait.is_for_anybody for wait in waiting.values()):
        roots = [rank for rank in sorted(ranks) if rank not in waiting and ranks[rank].exit_status is None]
    seen = [ranks[rank] for rank in roots]
    return tuple(one.rank for one in seen if one.works and not one.holds_lock and not one.is_stopped)


class _Questions:
    """Caches facts about all ranks, because thousands of ranks in one collective ask for the same ones."""

    def __init__(self, ranks: Mapping[int, Seen]) -> None:
        self.ranks = ranks
        self._same: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._late: dict[tuple[str, int, int], tuple[int, ...]] = {}
        self._calls: dict[tuple[str, int], dict[int, dict[int, Call]]] = {}

    @cached_property
    def everybody(self) -> tuple[int, ...]:
        return self._one(tuple(sorted(self.ranks)))

    @cached_property
    def not_joined(self) -> tuple[int, ...]:
        return tuple(seen.rank for seen in self.ranks.values() if not seen.joining and not _has_joined(seen))

    @cached_property
    def only_free_rank(self) -> tuple[int, ...]:
        """The rank that is in no torch.distributed call, if there is only one; of several, some may not be needed."""
        free = [
            seen.rank
            for seen in self.ranks.values()
            if seen.exit_status is None
            and not seen.blocking_call
            and not any(group.pending for group in (seen.groups or {}).values())
        ]
        return tuple(free) if len(free) == 1 else ()

    def _one(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """Intern equal member tuples, so that they can be compared by identity."""
        return self._same.setdefault(members, members)

    def members(self, name: str, group: Group) -> tuple[int, ...]:
        """The ranks of a group; empty if unknown."""
        if group.ranks:
            return self._one(group.ranks)
        return self.everybody if name == DEFAULT else ()

    def late(self, name: str, members: tuple[int, ...], number: int) -> tuple[int, ...]:
        """The members of a group that keep a collective from finishing."""
        key = (name, id(members), number)
        if key not in self._late:
            self._late[key] = _late([self.ranks[rank] for rank in members if rank in self.ranks], name, number)
        return self._late[key]

    def is_new(self, name: str, members: tuple[int, ...]) -> bool:
        """Whether the calls of this group have not been requested yet."""
        return (name, id(members)) not in self._calls

    def calls(self, name: str, members: tuple[int, ...]) -> dict[int, dict[int, Call]]:
        """The calls of the members, by number and rank."""
        key = (name, id(members))
        if key not in self._calls:
            found = self._calls[key] = {}
            for rank in members:
                group = (self.ranks[rank].groups or {}).get(name) if rank in self.ranks else None
                for call in group.calls if group is not None else ():
                    found.setdefault(call.number, {}).setdefault(rank, call)
        return self._calls[key]


def _waiting(asked: _Questions) -> dict[int, Wait]:
    """The ranks that wait for others."""
    running = [seen for seen in asked.ranks.values() if seen.exit_status is None]
    return {seen.rank: wait for seen in running if (wait := _wait_of(seen, asked))}


def _wait_of(seen: Seen, asked: _Questions) -> Wait | None:
    """What a rank waits for, if it waits for other ranks."""
    if seen.is_stopped or seen.holds_lock:
        return None  # it does not wait for other ranks, whatever call it is in
    if seen.joining:
        return Wait(rank=seen.rank, kind="joining", members=asked.everybody, blockers=asked.not_joined)
    pending = [(name, group, call) for name, group in (seen.groups or {}).items() if (call := group.pending)]
    if pending:
        # With several pending groups, it most likely waits in the one it called last.
        name, group, call = max(pending, key=lambda item: item[2].time)
        members = asked.members(name, group)
        late = asked.late(name, members, call.number)
        return Wait(rank=seen.rank, kind="collective", group=name, members=members, call=call, blockers=late)
    # An unrecorded call may be one of many short ones: then the main thread is scheduled often.
    if seen.switches > _ACTIVE:
        return None
    recorded = tuple(peer for group in (seen.groups or {}).values() for peer in group.peers)
    peers = recorded if seen.peer is None else (seen.peer,)
    if peers:
        known = tuple(peer for peer in peers if peer in asked.ranks)
        return Wait(rank=seen.rank, kind="peer", peer=peers[0], blockers=known)
    if seen.blocking_call and not seen.works:
        late = asked.only_free_rank if seen.blocking_call in _FOR_ALL else ()
        return Wait(rank=seen.rank, kind="call", blockers=late)
    return None


def _has_joined(seen: Seen) -> bool:
    if seen.exit_status is not None:  # it may have left before init_process_group, as `if RANK == "0": main()` does
        return bool(seen.begun)
    return bool(seen.groups) or seen.answered is not None


def _late(members: Sequence[Seen], group: str, number: int) -> tuple[int, ...]:
    """The members that keep a collective from finishing: they have not called it, or are stopped in it."""
    late = [seen.rank for seen in members if seen.is_stopped or _has_called(seen, group, number) is False]
    if late:
        return tuple(late)
    # All members with known calls have called it, so it must be one of the unknown ones.
    return tuple(seen.rank for seen in members if _has_called(seen, group, number) is None)


def _has_called(seen: Seen, group: str, number: int) -> bool | None:
    """Whether a rank has called a collective; None if unknown."""
    if seen.groups is not None:
        return group in seen.groups and seen.groups[group].called >= number
    if group != DEFAULT or seen.begun is None:
        return None
    return True if seen.begun >= number and seen.exit_status is None else False if seen.begun < number else None


def _roots(waiting: Mapping[int, Wait], ranks: Mapping[int, Seen]) -> tuple[int, ...]:
    """The ranks at the ends of all chains of waiting ranks."""
    different = {id(wait.blockers): wait.blockers for wait in waiting.values()}
    found = {rank for blockers in different.values() for rank in blockers if rank in ranks and rank not in waiting}
    return tuple(sorted(found))


def _circle(waiting: Mapping[int, Wait]) -> tuple[int, ...]:
    """Ranks that wait for each other in a cycle; empty if there is none."""
    done: set[int] = set()
    for begin in waiting:
        path: dict[int, None] = {}
        rank: int | None = begin
        while rank is not None and rank not in done:
            path[rank] = None
            done.add(rank)
            rank = next((other for other in waiting[rank].blockers if other in waiting), None)
        if rank is not None and rank in path:
            in_order = list(path)
            return tuple(sorted(in_order[in_order.index(rank) :]))
    return ()


def _find_differing(wait: Wait, asked: _Questions) -> Differing | None:
    """The first number under which members of a waiting rank's group called different things."""
    if wait.kind != "collective" or not asked.is_new(wait.group, wait.members):
        return None
    calls = asked.calls(wait.group, wait.members)
    # Mismatches that finished on all ranks did no harm.
    numbers = [number for number, called in calls.items() if not all(call.over for call in called.values())]
    return _compare(wait.group, wait.members, numbers, calls)


def last_calls_differ(ranks: Mapping[int, Seen]) -> Differing | None:
    """The mismatch in the last calls before a rank failed, if there is one and the ranks could still report it."""
    asked = _Questions(ranks)
    for seen in ranks.values():
        for name, group in (seen.groups or {}).items():
            members = asked.members(name, group)
            if asked.is_new(name, members):
                calls = asked.calls(name, members)
                last = max(calls, default=0)
                found = _compare(name, members, [last - 1, last], calls)
                if found is not None:
                    return found
    return None


def _compare(
    name: str, members: tuple[int, ...], numbers: Iterable[int], by_number: Mapping[int, Mapping[int, Call]]
) -> Differing | None:
    for number in sorted(numbers):
        calls = by_number.get(number, {})
        kinds: dict[object, list[int]] = {}
        for rank, call in calls.items():
            # What must be the same on all ranks.
            kind = (call.op, call.sizes, call.types) if call.op in _SAME_SIZES else call.op
            kinds.setdefault(kind, []).append(rank)
        if len(kinds) > 1:
            largest = max(map(len, kinds.values()))
            common = [alike for alike in kinds.values() if len(alike) == largest]
            odd = [rank for alike in kinds.values() if alike is not common[0] for rank in alike]
            return Differing(
                group=name,
                members=members,
                number=number,
                calls=calls,
                odd=tuple(sorted(odd)) if len(common) == 1 else (),
            )
    return None

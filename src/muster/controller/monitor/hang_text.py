"""The text of hang reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from muster.controller.monitor.failed_rendezvous import why_apart
from muster.controller.monitor.hang import DEFAULT, Differing, Finding, Wait
from muster.controller.monitor.observation import Call, Child, Seen
from muster.controller.monitor.stack_text import Frame, short
from muster.text import rank_list

_MANY = 8
"""Ranks, or groups of ranks, described before the rest is left out."""

_UNKNOWN = "could not determine which rank is the cause"


def sentence(finding: Finding, ranks: Mapping[int, Seen]) -> str:
    """Return the sentence of a hang report: which ranks wait, in which call, and which ranks they wait for."""
    if finding.differing is not None:
        return sentence_of_differing(finding.differing, ranks)
    culprits = set(finding.culprits)
    waiting = [wait for wait in finding.waits if wait.rank not in culprits]
    clauses = list(_waits(waiting, ranks))
    if finding.culprits:
        # A rank that does not answer made its last progress before the others began to wait for it.
        waited = max(ranks[wait.rank].quiet for wait in finding.waits)
        named = [ranks[rank] for rank in finding.culprits]
        clauses += _culprits(
            [seen if seen.answered else replace(seen, quiet=min(seen.quiet or waited, waited)) for seen in named]
        )
    elif finding.circle:
        clauses.append(f"{rank_list(finding.circle)} are waiting for each other, which is a deadlock")
    else:
        clauses.append(_nobody(finding, ranks))
    return "; ".join(clauses)


def detail(finding: Finding, ranks: Mapping[int, Seen]) -> str:
    """Return the stack traces of the ranks at fault, down to the user's own lines."""
    lines: list[str] = []
    for number in finding.culprits[:_MANY]:
        seen = ranks[number]
        if seen.frames:
            lines += [f"rank {number} on {seen.host}, most recent call first:", *short(seen.frames)]
        for child in _stuck_workers(seen)[:2]:
            lines += [f"its worker process {child.pid}, most recent call first:", *short(child.own)]
    return "\n".join(lines)


def still_working(waits: Sequence[Wait], works: Sequence[Seen]) -> str:
    """Describe ranks that wait for one that is still working: not a hang, but worth a message after minutes."""
    busy = "; ".join(
        f"rank {seen.rank} on {seen.host} has been working for {seen.quiet:.0f} s{_at(seen.place)}, "
        f"using {seen.cpu:.1f} CPUs"
        for seen in works[:_MANY]
    )
    waiting = f"{rank_list([wait.rank for wait in waits])} {'are' if len(waits) > 1 else 'is'} waiting"
    return f"{waiting}; {busy}. Muster does not report a hang while a rank works"


def _waits(waits: Sequence[Wait], ranks: Mapping[int, Seen]) -> Iterable[str]:
    """One clause for all ranks that wait in the same call."""
    alike: dict[str, list[Wait]] = {}
    known: dict[object, str] = {}  # formats the members of a group once, not once per rank
    for wait in waits:
        call = (wait.call.op, wait.call.number) if wait.call is not None else None
        key = (wait.kind, wait.group, id(wait.members), call, wait.peer, ranks[wait.rank].blocking_call)
        if key not in known:
            known[key] = _what(wait, ranks[wait.rank])
        alike.setdefault(known[key], []).append(wait)
    for what, those in alike.items():
        frames = [ranks[wait.rank].place or (wait.call.place if wait.call is not None else None) for wait in those]
        places = list(dict.fromkeys(frame.place for frame in frames if frame is not None))
        where = f" ({', '.join(places[:3])})" if places else ""
        be = "are" if len(those) > 1 else "is"
        yield f"{rank_list([wait.rank for wait in those])} {be} waiting {what}{where}"


def _what(wait: Wait, seen: Seen) -> str:
    if wait.kind == "collective" and wait.call is not None:
        return f"in {wait.call.op} number {wait.call.number}{_of_group(wait.group, wait.members)}"
    if wait.kind == "peer":
        verb = "to send to" if "send" in seen.blocking_call else "for data from"
        return f"{verb} rank {wait.peer}"
    if wait.kind == "joining":
        return "in init_process_group"
    return f"in {seen.blocking_call}"


def _of_group(name: str, members: Sequence[int]) -> str:
    if name == DEFAULT:
        return ""
    return f" of the group of {rank_list(members)}" if members else f" of group {name}"


def _culprits(culprits: Sequence[Seen]) -> list[str]:
    """One clause per rank; ranks in the same state at the same line share one."""
    alike: dict[str, list[Seen]] = {}
    for seen in culprits:
        alike.setdefault(_state(seen, many=False), []).append(seen)
    clauses: list[str] = []
    for same in list(alike.values())[:_MANY]:
        who = f"rank {same[0].rank} on {same[0].host}" if len(same) == 1 else rank_list(seen.rank for seen in same)
        seconds = max(seen.quiet for seen in same)
        clauses.append(f"{who} {_state(same[0], many=len(same) > 1, since=f' for {seconds:.0f} s')}")
    return clauses


def _state(seen: Seen, *, many: bool, since: str = "") -> str:
    """What has kept a rank from making progress; `since` is how long, ` for 31 s`."""
    have = "have" if many else "has"
    if seen.exit_status is not None and seen.exit_status < 0:
        return f"{'were' if many else 'was'} killed by signal {-seen.exit_status} and can no longer join"
    if seen.exit_status is not None:
        return f"exited with exit code {seen.exit_status} and can no longer join"
    if seen.is_frozen:
        return f"{have} been frozen by a cgroup{since}{_last(seen)}"
    if seen.state == "T":
        return f"{have} been stopped (SIGSTOP){since}{_last(seen)}"
    if seen.state == "t":
        return f"{have} been stopped by a debugger{since}{_last(seen)}"
    if seen.holds_lock:
        disk = f" in disk sleep ({seen.wchan or 'D'})" if seen.state == "D" else ""
        where = _at(seen.place) or " at an unknown line"
        return f"{have} held the GIL in C code{disk}{since},{where}"
    if seen.waits_for_loader:
        whose = "their DataLoaders" if many else "its DataLoader"
        workers = _worker(seen, _stuck_workers(seen), their="their" if many else "its")
        return f"{have} been waiting for {whose}{since}{_at(seen.place)}{workers}"
    if seen.state == "D":
        return f"{have} been in disk sleep ({seen.wchan or 'D'}){since}{_at(seen.place) or _last(seen)}"
    if seen.place is None:
        return f"{have} been at an unknown line{since}{_last(seen)}"
    return f"{have} been{_at(seen.place)}{since}"


def _at(place: Frame | None) -> str:
    """` in next_batch (data.py:33)`, ` at train.py:20`."""
    if place is None:
        return ""
    return f" at {place}" if place.function == "<module>" else f" in {place}"


def _last(seen: Seen) -> str:
    return f", last seen at {seen.last_place}" if seen.last_place else ""


def _stuck_workers(seen: Seen) -> list[Child]:
    """The DataLoader workers that are in the user's code, stopped, or in disk sleep."""
    if not seen.waits_for_loader:
        return []
    return [child for child in seen.children if child.work is not None or child.state in ("T", "t", "D")]


def _worker(seen: Seen, workers: Sequence[Child], *, their: str) -> str:
    if not workers:
        unseen = [child.pid for child in seen.children if not child.frames]
        if unseen:
            return f"; could not inspect {their} processes {', '.join(map(str, unseen[:4]))}"
        return f"; none of {their} workers is running user code"
    clauses: list[str] = []
    for child in workers[:2]:
        state = {"T": "stopped (SIGSTOP)", "t": "stopped by a debugger", "D": "in disk sleep"}.get(child.state, "")
        where = _at(child.work)
        clauses.append(f"worker process {child.pid} is {' '.join(filter(None, [state, where.strip()]))}")
    return f"; {their} " + f" and {their} ".join(clauses)


def _nobody(finding: Finding, ranks: Mapping[int, Seen]) -> str:
    """Describe a hang in which every rank waits and no rank is known to be the cause."""
    if all(wait.kind == "joining" for wait in finding.waits):
        return why_apart(ranks) or _UNKNOWN
    stuck = next((wait for wait in finding.waits if wait.kind == "collective" and not wait.blockers), None)
    if stuck is None or not stuck.members:
        return _UNKNOWN
    everyone = "all ranks" if stuck.group == DEFAULT else "all of them"
    quiet = min(ranks[wait.rank].quiet for wait in finding.waits)
    return (
        f"{everyone} have made this call, but it has not finished for {quiet:.0f} s; "
        "the network or the backend is blocking it, not a rank"
    )


def sentence_of_differing(differing: Differing, ranks: Mapping[int, Seen]) -> str:
    """Describe which ranks called different collectives under the same number."""
    sizes = len({call.op for call in differing.calls.values()}) == 1
    minority = set(differing.odd)
    by_kind: dict[tuple[bool, str], list[int]] = {}
    for rank, call in differing.calls.items():
        place = call.place or (ranks[rank].place if not call.over else None)
        where = f" ({place.place})" if place else ""
        text = f"{call.op}{_shape(call) if sizes else ''}{where}"
        by_kind.setdefault((rank in minority, text), []).append(rank)
    usual = [
        f"{rank_list(members)} {'call' if len(members) > 1 else 'calls'} {text}"
        for (odd, text), members in by_kind.items()
        if not odd
    ]
    strange = [
        f"rank {members[0]} on {ranks[members[0]].host} calls {text}"
        if len(members) == 1
        else f"{rank_list(members)} call {text}"
        for (odd, text), members in by_kind.items()
        if odd
    ]
    number = f" as collective number {differing.number}{_of_group(differing.group, differing.members)}"
    if not strange:
        return " but ".join(usual) + number + ", which can never finish"
    return " and ".join(usual) + number + ", but " + " and ".join(strange)


def _shape(call: Call) -> str:
    shapes = ", ".join("x".join(map(str, size)) if size else "scalar" for size in call.sizes[:3])
    types = "/".join(dict.fromkeys(call.types))
    return f" of {shapes} {types}" if shapes else ""

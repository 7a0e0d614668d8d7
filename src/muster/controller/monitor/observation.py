"""What has been seen of each rank when the job stands still: from the agents' raw facts to what a judge reads. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from muster.controller.monitor.stack_text import Frame, main_thread, training_thread, users_frame
from muster.shared.replies import RankView
from muster.shared.reports import Meeting, RecordedCall, RecordedGroup

_WORKING_CPU = 0.05
"""Share of one CPU above which a process works. A rank that waits and its sampling thread use 0.002."""

_WORKING_IO = 16384.0
"""Bytes per second read or written above which it does; a rank's own reports are below 1000."""

_WORKING_GPU = 0.05

_PEER = re.compile(r"(?:send|recv) \d+(?:->|<-)(\d+)")
"""`nccl:recv 1<-0`: the other side, by its number in the group."""

_C10D = "torch/distributed/distributed_c10d.py"
_RENDEZVOUS = "torch/distributed/rendezvous.py"
_DATALOADER = "torch/utils/data/dataloader.py"
_WORKER = "torch/utils/data/_utils/worker.py"


class Sighting(RankView):
    """A rank as its agent has seen it, and the agent's host."""

    host: str


Looks = Sequence[tuple[float, Sighting]]
"""When a rank was looked at, and what was seen, oldest first."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective as a rank called it."""

    number: int
    op: str
    sizes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    over: bool = True
    time: float = 0.0
    """When it was called, on the clock of its host."""
    place: Frame | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """The last collectives of a rank in one process group."""

    ranks: tuple[int, ...] | None
    """Its members, where the rank could tell."""
    calls: tuple[Call, ...]
    peers: tuple[int, ...] = ()
    """The ranks that it has sent to or receives from without an end, where the backend records that."""

    @property
    def called(self) -> int:
        """The number of the last one it has called."""
        return max((call.number for call in self.calls), default=0)

    @property
    def pending(self) -> Call | None:
        """The first one that has not finished."""
        return min((call for call in self.calls if not call.over), key=lambda call: call.number, default=None)


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process that a rank started."""

    pid: int
    state: str = "S"
    frames: tuple[Frame, ...] = ()

    @property
    def own(self) -> tuple[Frame, ...]:
        """Its calls as a worker, without those of the rank it was forked from."""
        first = next((at for at, frame in enumerate(self.frames) if frame.is_in(_WORKER)), 0)
        return self.frames[:first]

    @property
    def work(self) -> Frame | None:
        """The user's frame it is in as a worker; None when it waits for something to do."""
        return users_frame(self.own)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All that is known of one rank."""

    rank: int
    host: str
    exit_status: int | None = None
    """Exit code, or minus the signal, of one that has ended."""
    quiet: float = 0.0
    """Seconds since anything in it moved: a collective called or finished, an optimizer's step."""
    joining: bool = False
    """It is creating its process group."""
    meeting: Meeting | None = None
    """Where it looks for the others, if it could tell."""
    answered: bool | None = True
    """Whether its interpreter answered; None where there is no thread in it that could, since it has no group yet."""
    works: bool = False
    """It, or a process it started, used the CPU, its GPU or a disk lately."""
    cpu: float = 0.0
    """CPUs used lately."""
    switches: float = 0.0
    """How often a second its main thread was given the CPU lately."""
    state: str = "S"
    wchan: str = ""
    frames: tuple[Frame, ...] = ()
    """Of its main thread, the innermost first."""
    last_place: str = ""
    """Where it was when it last told."""
    peer: int | None = None
    """The rank whose send or recv it waits for."""
    waits_for_work: bool = False
    """It is in the `wait` of an asynchronous operation."""
    groups: Mapping[str, Group] | None = None
    """By name; None where they could not be told."""
    begun: int | None = None
    """How many collectives of the default group it had called when it last told."""
    children: tuple[Child, ...] = ()

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the user's code."""
        return users_frame(self.frames)

    @property
    def is_frozen(self) -> bool:
        """Whether a cgroup's freezer holds it."""
        return "refrigerator" in self.wchan or "freezer" in self.wchan

    @property
    def is_stopped(self) -> bool:
        """Whether something from outside keeps it from running at all."""
        return self.state in ("T", "t") or self.is_frozen

    @property
    def holds_lock(self) -> bool:
        """Whether its interpreter did not answer although the kernel lets it run: C code holds the lock."""
        return self.answered is False and not self.is_stopped

    @property
    def waits_for_loader(self) -> bool:
        """Whether its main thread waits for a worker of a DataLoader."""
        for frame in self.frames:
            if frame.is_users:
                return False
            if frame.is_in(_DATALOADER) and frame.function in ("_try_get_data", "_get_data", "_next_data"):
                return True
        return False

    @property
    def blocking_call(self) -> str:
        """The call of torch.distributed that its main thread is in, if it is in one that waits for other ranks."""
        found = ""
        for frame in self.frames:
            if not frame.is_in(_C10D) and not frame.is_in(_RENDEZVOUS):
                if frame.function == "wrapper" and frame.is_torchs:
                    continue
                break
            found = frame.function
        return found or ("wait" if self.waits_for_work else "")


def seen(
    rank: int,
    facts: Sighting,
    looks: Looks,
    *,
    quiet: float,
    joining: bool = False,
    begun: int | None = None,
    place: str = "",
    gpu: float | None = None,
) -> Seen:
    """What the last look says of a rank, with the looks before it (when, and what), oldest first."""
    told = facts.get("told")
    recorder = facts.get("recorder")
    answered = facts["answered"]
    if answered is False and any(look["answered"] for _, look in looks):
        answered = True  # once too slow, on a busy host: only one that never answers holds the lock
    return Seen(
        rank=rank,
        host=facts["host"],
        quiet=quiet,
        joining=joining,
        meeting=told["meeting"] if told else None,
        answered=answered,
        works=works(looks, gpu),
        cpu=_rates(looks[0], looks[-1])[0] if len(looks) > 1 else 0.0,
        switches=_switches(looks),
        state=facts["state"],
        wchan=facts["wchan"],
        frames=training_thread(facts["stack"]),
        last_place=place,
        begun=begun,
        peer=told["peer"] if told else None,
        waits_for_work=bool(told and told["work"]),
        groups=None if recorder is None else groups_of(recorder),
        children=tuple(
            Child(pid=child["pid"], state=child["state"], frames=main_thread(child["stack"]))
            for child in facts["children"]
        ),
    )


def works(looks: Looks, gpu: float | None = None) -> bool:
    """Whether a rank or what it started did something between any two of these looks, or is about to."""
    if gpu is not None and gpu > _WORKING_GPU:
        return True
    if looks and looks[-1][1]["state"] == "R" and looks[-1][1]["answered"]:
        return True
    return any(
        cpu > _WORKING_CPU or io > _WORKING_IO
        for cpu, io in (_rates(before, after) for before, after in pairwise(looks))
    )


def _rates(before: tuple[float, Sighting], after: tuple[float, Sighting]) -> tuple[float, float]:
    """CPUs and bytes per second of a rank with its children; a child that is new has done all of it since."""
    seconds = max(after[0] - before[0], 0.001)
    known = {child["pid"]: child for child in before[1]["children"]}
    cpu, io = after[1]["cpu_seconds"] - before[1]["cpu_seconds"], after[1]["io"] - before[1]["io"]
    for child in after[1]["children"]:
        then = known.get(child["pid"])
        cpu += max(0.0, child["cpu_seconds"] - (then["cpu_seconds"] if then else 0.0))
        io += max(0, child["io"] - (then["io"] if then else 0))
    return cpu / seconds, io / seconds


def _switches(looks: Looks) -> float:
    if len(looks) < 2:
        return 0.0
    (before, first), (after, last) = looks[-2:]
    return (last["switches"] - first["switches"]) / max(after - before, 0.001)


def groups_of(recorder: Mapping[str, RecordedGroup]) -> dict[str, Group]:
    """The last collectives by the name of their group, from what a rank told."""
    return {name: _group(group) for name, group in recorder.items()}


def last_seen_at(place: str, groups: Mapping[str, Group]) -> dict[str, Group]:
    """The last collectives of a rank whose exception came out of the last call of each group, at `train.py:88`."""
    file, _, line = place.rpartition(":")
    if not line.isdigit():
        return dict(groups)
    frame = Frame(file=file, line=int(line), function="")
    return {
        name: replace(group, calls=(*group.calls[:-1], *(replace(call, place=frame) for call in group.calls[-1:])))
        for name, group in groups.items()
    }


def _group(data: RecordedGroup) -> Group:
    ranks = data["ranks"]
    calls: list[Call] = []
    for call in map(_call, data["calls"]):
        if calls and call.number <= calls[-1].number:
            calls = []  # a group that was made anew under the same name counts from 1 again
        calls.append(call)
    peers = [int(found[1]) for name in data["p2p"] if (found := _PEER.search(name))]
    known = ranks or range(max(peers, default=0) + 1)
    return Group(
        ranks=tuple(ranks) if ranks else None,
        calls=tuple(calls),
        peers=tuple(known[peer] for peer in peers if peer < len(known)),
    )


def _call(data: RecordedCall) -> Call:
    place = data["place"]
    return Call(
        number=data["number"],
        op=data["op"],
        sizes=tuple(tuple(size) for size in data["sizes"]),
        types=tuple(data["types"]),
        over=data["over"],
        time=data["time"],
        place=Frame(file=place[0], line=place[1], function=place[2]) if place else None,
    )

"""Turns the agents' raw observations of a job without progress into the input of hang detection. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from muster.controller.monitor.stack_text import Frame, main_thread, training_thread, users_frame
from muster.shared.replies import RankView
from muster.shared.reports import Meeting, RecordedCall, RecordedGroup

_WORKING_CPU = 0.05
"""Share of one CPU above which a process counts as working; a waiting rank and its sampling thread use 0.002."""

_WORKING_IO = 16384.0
"""Bytes per second read or written above which a process counts as working; a rank's own reports stay below 1000."""

_WORKING_GPU = 0.05
"""GPU utilization above which a rank counts as working."""

_PEER = re.compile(r"(?:send|recv) \d+(?:->|<-)([0-9]{1,9})")
"""Matches `nccl:recv 1<-0`; captures the peer's number in the group."""

_C10D = "torch/distributed/distributed_c10d.py"
_RENDEZVOUS = "torch/distributed/rendezvous.py"
_DATALOADER = "torch/utils/data/dataloader.py"
_WORKER = "torch/utils/data/_utils/worker.py"


class Sighting(RankView):
    """A rank as observed by its agent, and the agent's host."""

    host: str


Looks = Sequence[tuple[float, Sighting]]
"""Observations of a rank with their times, oldest first."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective as a rank called it."""

    number: int
    op: str
    sizes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    over: bool = True
    time: float = 0.0
    """When it was called, in its host's time."""
    place: Frame | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """The last collectives of a rank in one process group."""

    ranks: tuple[int, ...] | None
    """Its members, if the rank could report them."""
    calls: tuple[Call, ...]
    peers: tuple[int, ...] = ()
    """The ranks of its unfinished sends and receives, if the backend records them."""

    @property
    def called(self) -> int:
        """The number of the last collective it has called."""
        return max((call.number for call in self.calls), default=0)

    @property
    def pending(self) -> Call | None:
        """The first unfinished collective."""
        return min((call for call in self.calls if not call.over), key=lambda call: call.number, default=None)


@dataclass(frozen=True, kw_only=True)
class Child:
    """A child process of a rank."""

    pid: int
    state: str = "S"
    frames: tuple[Frame, ...] = ()

    @property
    def own(self) -> tuple[Frame, ...]:
        """Its frames as a worker, without those of the rank it was forked from."""
        first = next((at for at, frame in enumerate(self.frames) if frame.is_in(_WORKER)), 0)
        return self.frames[:first]

    @property
    def work(self) -> Frame | None:
        """The user's frame it is in as a worker; None if it is idle."""
        return users_frame(self.own)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All that is known about one rank."""

    rank: int
    host: str
    exit_status: int | None = None
    """Exit code or negative signal number if it has ended."""
    quiet: float = 0.0
    """Seconds since its last progress: a collective called or finished, or an optimizer step."""
    joining: bool = False
    """It is creating its process group."""
    meeting: Meeting | None = None
    """Where it looks for the other ranks, if known."""
    answered: bool | None = True
    """Whether its interpreter answered; None if it has no thread to answer, because it has no process group yet."""
    works: bool = False
    """It, or a process it started, has recently used the CPU, its GPU or a disk."""
    cpu: float = 0.0
    """Number of CPUs used recently."""
    switches: float = 0.0
    """Recent context switches per second of its main thread."""
    state: str = "S"
    wchan: str = ""
    frames: tuple[Frame, ...] = ()
    """The frames of its main thread, innermost first."""
    last_place: str = ""
    """Where it was at its last report."""
    peer: int | None = None
    """The rank whose send or recv it waits for."""
    waits_for_work: bool = False
    """It is in the `wait` of an asynchronous operation."""
    groups: Mapping[str, Group] | None = None
    """By name; None if unknown."""
    begun: int | None = None
    """Number of collectives of the default group it had called at its last report."""
    children: tuple[Child, ...] = ()

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the user's code."""
        return users_frame(self.frames)

    @property
    def is_frozen(self) -> bool:
        """Whether a cgroup has frozen it."""
        return "refrigerator" in self.wchan or "freezer" in self.wchan

    @property
    def is_stopped(self) -> bool:
        """Whether a signal, a debugger or a cgroup has stopped it."""
        return self.state in ("T", "t") or self.is_frozen

    @property
    def holds_lock(self) -> bool:
        """Whether its interpreter did not answer although it can run: C code holds the GIL."""
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
        """The torch.distributed call that its main thread is in, if that call waits for other ranks."""
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
    """Combine the last observation of a rank with the earlier ones, oldest first."""
    report = facts.get("self_report")
    recorder = facts.get("recorder")
    answered = facts["answered"]
    if answered is False and any(look["answered"] for _, look in looks):
        answered = True  # too slow once, on a busy host; only a rank that never answers holds the GIL
    return Seen(
        rank=rank,
        host=facts["host"],
        quiet=quiet,
        joining=joining,
        meeting=report["meeting"] if report else None,
        answered=answered,
        works=works(looks, gpu),
        cpu=_rates(looks[0], looks[-1])[0] if len(looks) > 1 else 0.0,
        switches=_switches(looks),
        state=facts["state"],
        wchan=facts["wchan"],
        frames=training_thread(facts["stack"]),
        last_place=place,
        begun=begun,
        peer=report["peer"] if report else None,
        waits_for_work=bool(report and report["work"]),
        groups=None if recorder is None else groups_of(recorder),
        children=tuple(
            Child(pid=child["pid"], state=child["state"], frames=main_thread(child["stack"]))
            for child in facts["children"]
        ),
    )


def works(looks: Looks, gpu: float | None = None) -> bool:
    """Whether a rank or its children worked between any two of these observations, or are about to."""
    if gpu is not None and gpu > _WORKING_GPU:
        return True
    if looks and looks[-1][1]["state"] == "R" and looks[-1][1]["answered"]:
        return True
    return any(
        cpu > _WORKING_CPU or io > _WORKING_IO
        for cpu, io in (_rates(before, after) for before, after in pairwise(looks))
    )


def _rates(before: tuple[float, Sighting], after: tuple[float, Sighting]) -> tuple[float, float]:
    """CPUs and bytes per second used by a rank and its children; all of a new child's usage counts."""
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
    """The last collectives by group name, from the report of a rank."""
    return {name: _group(group) for name, group in recorder.items()}


def last_seen_at(place: str, groups: Mapping[str, Group]) -> dict[str, Group]:
    """The last collectives of a rank, with the last call of each group placed where its exception was raised."""
    file, _, line = place.rpartition(":")
    if not re.fullmatch("[0-9]{1,9}", line):
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
            calls = []  # a group that was re-created under the same name counts from 1 again
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

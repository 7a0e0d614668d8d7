"""Why a rank is slower than the others, from what was seen of all of them; and the sentence about it. Pure.

A cause is named only where the slow rank suffers from it more than any of the others do, and enough to account for a
good part of the time that is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from muster.controller.monitor.straggler import Slow, middle
from muster.jobs.state import GpuState
from muster.shared.replies import RankUse
from muster.text import duration, names, rank_list

PART = 0.4
"""Of the time that is lost, which a cause must account for."""

SLOWER_CLOCK = 0.93
"""Of the others' clock, below which a GPU's is told."""


class Evidence(RankUse):
    """What was seen of one rank from outside, its GPU, and where its code was when it was looked at.

    `cpu_wait` is the share in which it was ready to run and had no CPU, `disk` the one in which it, or a child, waited
    for a file, `throttled` the one in which its control group had used up its quota; over 1 where several of its CPUs
    were held back. `neighbour` is the busiest process of others on its CPUs.
    """

    gpu: GpuState | None
    places: Sequence[str]


def explain(slow: Slow, seen: Mapping[int, Evidence]) -> str:
    """Why the slowest rank is slow, in words; what was looked at in vain where nothing tells."""
    suspect = seen.get(slow.ranks[0])
    if suspect is None:
        return ""
    others = [evidence for rank, evidence in seen.items() if rank not in slow.ranks]
    needed = PART * (1 - slow.others / slow.step)
    throttled = suspect["throttled"] - (middle([one["throttled"] for one in others]) if others else 0.0)
    if suspect["quota"] is not None and throttled >= needed:
        return f"its CPUs are limited to {_cores(suspect['quota'])} (cgroup quota)"
    gpu = _gpu(suspect, others)
    if gpu:
        return gpu
    disk = suspect["disk"] - max((one["disk"] for one in others), default=0.0)
    wait = suspect["cpu_wait"] - max((one["cpu_wait"] for one in others), default=0.0)
    if max(disk, wait) < needed:
        return _nothing(suspect, others)
    if disk >= wait:
        return (
            f"it waits for its disk {suspect['disk'] * 100:.0f} % of the time ({suspect['read'] / 1e6:.1f} MB/s read)"
        )
    by = suspect["neighbour"]
    who = f" ({by['name']}, process {by['pid']}, uses {by['cpu']:.1f} of one)" if by else ""
    return f"other work runs on its CPUs: it waits for one {suspect['cpu_wait'] * 100:.0f} % of the time{who}"


def _gpu(suspect: Evidence, others: Sequence[Evidence]) -> str:
    gpu = suspect["gpu"]
    if gpu is None:
        return ""
    gpus = [one["gpu"] for one in others if one["gpu"] is not None]
    usual = [other.clock for other in gpus if other.clock and other.name == gpu.name]
    clock = int(middle(usual)) if usual else None
    why = f": {gpu.throttled}" if gpu.throttled else ""
    if gpu.clock and clock and gpu.clock <= SLOWER_CLOCK * clock:
        return f"its GPU {gpu.index} runs at {gpu.clock} MHz, those of the others at {clock}{why}"
    calm = any(not other.throttled for other in gpus)
    return f"its GPU {gpu.index} is slowed down{why}" if gpu.throttled and calm else ""


def _nothing(suspect: Evidence, others: Sequence[Evidence]) -> str:
    usual = middle([one["cpu"] for one in others]) if others else None
    place, times = (
        Counter(place for place in suspect["places"] if place).most_common(1)[0] if any(suspect["places"]) else ("", 0)
    )
    seen = f"; mostly seen at {place}" if times > 1 else ""
    if usual is not None and suspect["cpu"] > usual * 1.1 + 0.05:
        return f"it computes more: it uses {suspect['cpu']:.2f} CPUs, the others {usual:.2f}{seen}"
    return f"its own code takes longer: its CPUs, disk and GPU look as those of the others do{seen}"


def _cores(number: float) -> str:
    return f"{number:.2g} of a core" if number < 1 else f"{number:.3g} core" + ("s" if number > 1 else "")


def sentence(slow: Slow, hosts: Mapping[int, str], why: str) -> str:
    """`rank 2 on box is the one the others wait for: its steps take 0.31 s where the others need 0.25 s …`."""
    many = len(slow.ranks) > 1
    on = sorted({hosts[rank] for rank in slow.ranks})
    told = f"{rank_list(slow.ranks)} on {names(on, 6)} {'are those' if many else 'is the one'}"
    times = f"steps take {duration(slow.step)} where the others need {duration(slow.others)}"
    slower = f"{slow.share * 100:.0f} % slower"
    return f"{told} the others wait for: {'their' if many else 'its'} {times} ({slower})" + (f"; {why}" if why else "")


def gone(slow: Slow, hosts: Mapping[int, str]) -> str:
    """What is said when they are no longer waited for."""
    on = ", ".join(sorted({hosts[rank] for rank in slow.ranks}))
    keep = "keep" if len(slow.ranks) > 1 else "keeps"
    return f"{rank_list(slow.ranks)} on {on} {keep} up with the others again"

"""The cause of a straggler, determined by comparing all ranks, and the sentence that reports it. Pure.

A cause is reported only if it affects the slow rank more than any other and explains a large part of the lost time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from muster.controller.monitor.straggler import Slow, middle
from muster.jobs.state import GpuState
from muster.shared.replies import RankUse
from muster.text import duration, names, rank_list

PART = 0.4
"""Share of the lost time that a cause must explain."""

SLOWER_CLOCK = 0.93
"""A GPU whose clock is below this share of the others' clock is reported."""


class Evidence(RankUse):
    """What the agent observed of one rank, its GPU, and the lines where its code was.

    `cpu_wait` is the share of time it was runnable without a CPU, `disk` the share in which it or a child waited for a
    file, `throttled` the share in which its cgroup had exhausted its quota (above 1 if several CPUs were throttled).
    `neighbor` is the busiest process outside the job on its CPUs.
    """

    gpu: GpuState | None
    places: Sequence[str]


def explain(slow: Slow, seen: Mapping[int, Evidence]) -> str:
    """Return a sentence with the cause of the slowest rank; if none was found, which causes were ruled out."""
    suspect = seen.get(slow.ranks[0])
    if suspect is None:
        return ""
    others = [evidence for rank, evidence in seen.items() if rank not in slow.ranks]
    needed = PART * (1 - slow.others / slow.step)
    throttled = suspect["throttled"] - (middle([one["throttled"] for one in others]) if others else 0.0)
    if suspect["quota"] is not None and throttled >= needed:
        return f"A cgroup quota limits it to {_cores(suspect['quota'])}"
    gpu = _gpu(suspect, others)
    if gpu:
        return gpu
    disk = suspect["disk"] - max((one["disk"] for one in others), default=0.0)
    wait = suspect["cpu_wait"] - max((one["cpu_wait"] for one in others), default=0.0)
    if max(disk, wait) < needed:
        return _nothing(suspect, others)
    if disk >= wait:
        return (
            f"It waits for its disk {suspect['disk'] * 100:.0f} % of the time ({suspect['read'] / 1e6:.1f} MB/s read)"
        )
    by = suspect["neighbor"]
    who = f" ({by['name']}, process {by['pid']}, uses {by['cpu']:.1f} CPUs)" if by else ""
    return f"Other processes use its CPUs; it waits for one {suspect['cpu_wait'] * 100:.0f} % of the time{who}"


def _gpu(suspect: Evidence, others: Sequence[Evidence]) -> str:
    gpu = suspect["gpu"]
    if gpu is None:
        return ""
    gpus = [one["gpu"] for one in others if one["gpu"] is not None]
    usual = [other.clock for other in gpus if other.clock and other.name == gpu.name]
    clock = int(middle(usual)) if usual else None
    why = f" ({gpu.throttled})" if gpu.throttled else ""
    if gpu.clock and clock and gpu.clock <= SLOWER_CLOCK * clock:
        return f"Its GPU {gpu.index} runs at {gpu.clock} MHz vs. {clock} MHz on the other ranks{why}"
    calm = any(not other.throttled for other in gpus)
    return f"Its GPU {gpu.index} is throttled{why}" if gpu.throttled and calm else ""


def _nothing(suspect: Evidence, others: Sequence[Evidence]) -> str:
    usual = middle([one["cpu"] for one in others]) if others else None
    place, times = (
        Counter(place for place in suspect["places"] if place).most_common(1)[0] if any(suspect["places"]) else ("", 0)
    )
    seen = f". Most often seen at {place}" if times > 1 else ""
    if usual is not None and suspect["cpu"] > usual * 1.1 + 0.05:
        return f"It uses more CPU: {suspect['cpu']:.2f} CPUs vs. {usual:.2f} on the other ranks{seen}"
    return f"Its own code is slower; CPU, disk and GPU look normal{seen}"


def _cores(number: float) -> str:
    return f"{number:.2g} of a CPU" if number < 1 else f"{number:.3g} CPU" + ("s" if number > 1 else "")


def sentence(slow: Slow, hosts: Mapping[int, str], why: str) -> str:
    """`rank 2 on b is slowing the job down: 0.31 s per step vs. 0.25 s (+24 %). Its own code is slower …`."""
    on = sorted({hosts[rank] for rank in slow.ranks})
    who = f"{rank_list(slow.ranks)} on {names(on, 6)} {'are' if len(slow.ranks) > 1 else 'is'}"
    times = f"{duration(slow.step)} per step vs. {duration(slow.others)} (+{slow.share * 100:.0f} %)"
    return f"{who} slowing the job down: {times}" + (f". {why}" if why else "")


def gone(slow: Slow, hosts: Mapping[int, str]) -> str:
    """Report that ranks which were slow keep up again."""
    on = ", ".join(sorted({hosts[rank] for rank in slow.ranks}))
    return f"{rank_list(slow.ranks)} on {on} {'are' if len(slow.ranks) > 1 else 'is'} no longer slowing the job down"

"""No two ranks get the same GPU, and no machine is named twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Fix
from muster.check.fixes import unset

SYMPTOM = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device"


def judge(cluster: Cluster) -> Iterator[Finding]:
    """NCCL refuses it, so it is an error; one machine under two names a warning without GPUs."""
    for name, answer in cluster.answers("variables").items():
        visible = answer["env"].get("CUDA_VISIBLE_DEVICES", "")
        twice = _twice(visible, cluster.answer("gpus", name).get("gpus", []))
        if twice and cluster.machine(name).ranks > 1:
            # row 44
            yield Finding(
                severity="error",
                hosts=(name,),
                what=f"CUDA_VISIBLE_DEVICES={visible} names GPU {twice} twice",
                symptom=SYMPTOM,
                fix=unset(cluster, name, "CUDA_VISIBLE_DEVICES", answer["sources"]),
                row=44,
            )
    yield from _same_machine(cluster)


def _twice(visible: str, gpus: list[dict[str, Any]]) -> str:
    """The first GPU that a list of numbers and UUIDs names again."""
    numbers = {gpu["uuid"]: str(gpu["index"]) for gpu in gpus}
    seen: set[str] = set()
    for part in visible.split(","):
        word = part.strip()
        number = numbers.get(word) or next((n for uuid, n in numbers.items() if word and uuid.startswith(word)), word)
        if number and number in seen:
            return number
        seen.add(number)
    return ""


def _same_machine(cluster: Cluster) -> Iterator[Finding]:
    """GPUs have ids of their own; without them, the same hardware addresses are the same machine."""
    owners: dict[str, str] = {}
    told: set[str] = set()
    for machine in cluster.machines:
        gpus: list[dict[str, Any]] = cluster.answer("gpus", machine.name).get("gpus", [])
        ids: list[str] = [gpu["uuid"] for gpu in gpus] or machine.answers.get("gpu_share", [])
        first = next((owners[number] for number in ids if number in owners), None)
        if first is not None and machine.name not in told:
            told.add(machine.name)
            yield Finding(
                severity="error" if gpus else "warning",
                hosts=(machine.name,),
                what=f"it is the same machine as {first}, so their ranks share {'its GPUs' if gpus else 'it'}",
                symptom=SYMPTOM if gpus else "a world twice as large as the machines it runs on",
                fix=Fix(say=f"name it once: `{first}:N` for N ranks"),
                row=44,
            )
        for number in ids:
            owners.setdefault(number, machine.name)


def probe(ask: dict[str, Any]) -> list[str]:
    """Ask one host: the hardware addresses of its network cards; virtual ones may be alike on many hosts."""
    import glob
    import os

    found: list[str] = []
    for path in sorted(glob.glob("/sys/class/net/*/address")):
        if os.path.exists(os.path.join(os.path.dirname(path), "device")):
            with open(path) as file:
                found.append(file.read().strip())
    return [address for address in found if address.strip("0:")]


CHECK = Check(probe=probe, judge=judge)

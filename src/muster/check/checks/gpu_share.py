"""No two ranks get the same GPU, and no machine is listed twice."""

from __future__ import annotations

from muster.agent.probes import host_network, operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.check.fixes import unset

SYMPTOM = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device"
TOO_MANY = "twice as many ranks on the machine as intended"


def judge(cluster: Cluster) -> Findings:
    """An error, because NCCL rejects it; without GPUs, one machine under two names is a warning."""
    for name, answer in cluster.answers(operating_system.variables).items():
        visible = answer["env"].get("CUDA_VISIBLE_DEVICES", "")
        twice = _twice(visible, {gpu["uuid"]: str(gpu["index"]) for gpu in cluster.gpus(name)})
        if twice and cluster.machine(name).ranks > 1:
            what = f"CUDA_VISIBLE_DEVICES={visible} lists GPU {twice} twice"
            yield Finding("error", (name,), what, SYMPTOM, unset(cluster, name, "CUDA_VISIBLE_DEVICES"), row=44)
    yield from _same_machine(cluster)


def _twice(visible: str, numbers: dict[str, str]) -> str:
    """The first GPU that a list of indexes and UUIDs repeats; `numbers` maps each UUID to its index."""
    seen: set[str] = set()
    for part in visible.split(","):
        word = part.strip()
        number = numbers.get(word) or next((n for uuid, n in numbers.items() if word and uuid.startswith(word)), word)
        if number and number in seen:
            return number
        seen.add(number)
    return ""


def _same_machine(cluster: Cluster) -> Findings:
    """Machines are identified by the UUIDs of their GPUs, or without GPUs by their MAC addresses."""
    owners: dict[str, str] = {}
    for machine in cluster.machines:
        gpus = cluster.gpus(machine.name)
        ids = [gpu["uuid"] for gpu in gpus] or machine.answer(host_network.hardware_addresses) or []
        first = next((owners[number] for number in ids if number in owners), None)
        if first is not None:
            what = f"this is the same machine as {first}, so their ranks share {'its GPUs' if gpus else 'it'}"
            fix = Fix(say=f"list it once: `{first}:N` for N ranks")
            symptom = SYMPTOM if gpus else TOO_MANY
            yield Finding("error" if gpus else "warning", (machine.name,), what, symptom, fix, row=44)
        for number in ids:
            owners.setdefault(number, machine.name)


CHECK = Check(probe=host_network.hardware_addresses, judge=judge)

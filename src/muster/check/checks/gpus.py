"""Every GPU of a host responds, is healthy, and is the same model as the others."""

from __future__ import annotations

from collections.abc import Iterator

from muster.agent.probes import nvidia
from muster.check.cluster_facts import Cluster, Machine, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.text import size_text

GONE = "CUDA error: no CUDA-capable device is detected, or fewer ranks than expected"
SICK = "CUDA error: uncorrectable ECC error encountered, in the middle of the job"
SLOW = "all ranks wait for the slowest GPU, without any message"

LIMIT = 6.0
"""Timeout of nvidia-smi in seconds. It normally takes 0.1 s; longer means a bad GPU or no persistence mode."""


def judge(cluster: Cluster) -> Findings:
    """Report GPUs that are missing, unhealthy or slow."""
    for machine in cluster.machines:
        if "gpus" in machine.hung:
            what = f"nvidia-smi timed out after {LIMIT:.0f} s: a GPU or its driver hangs"
            fix = Fix(command=f"{cluster.sudo(machine.name)}reboot", on=machine.name)
            yield Finding("error", (machine.name,), what, GONE, fix, row=48)
        answer = machine.answer(nvidia.gpus)
        if answer and answer["asked"]:
            yield from _missing(cluster, machine, answer)
            for what, symptom, fix in _sick(cluster, machine.name, answer):
                yield Finding("warning", (machine.name,), what, symptom, fix, row=48)
    yield from _kinds(cluster)


def _missing(cluster: Cluster, machine: Machine, answer: nvidia.Gpus) -> Findings:
    name, seen, usable = machine.name, len(answer["gpus"]), machine.up["gpus"]
    reboot = Fix(command=f"{cluster.sudo(name)}reboot", on=name, say="or leave this host out of -H")
    if answer["problem"]:
        what = f"nvidia-smi fails: {answer['problem'].splitlines()[0]}"
        yield Finding("error", (name,), what, GONE, reboot, row=48)
    elif seen < answer["devices"] and not cluster.wanted.image:
        yield Finding("warning", (name,), f"only {seen} of {answer['devices']} GPUs respond", GONE, reboot, row=48)
    # With --env CUDA_VISIBLE_DEVICES the plan has already counted the GPUs; an empty value means a run on the CPU.
    if 0 < usable < machine.ranks and "CUDA_VISIBLE_DEVICES" not in cluster.wanted.named:
        what = f"{machine.ranks} ranks need {machine.ranks} GPUs, but only {usable} available"
        yield Finding("error", (name,), what, GONE, Fix(say=f"use `-H {name}:{usable}`"), row=48)


def _sick(cluster: Cluster, host: str, answer: nvidia.Gpus) -> Iterator[tuple[str, str, Fix]]:
    def reset(number: int | str) -> Fix:
        return Fix(command=f"{cluster.sudo(host)}nvidia-smi --gpu-reset -i {number}", on=host)

    for gpu in answer["gpus"]:
        number = gpu["index"]
        if gpu["ecc"] > 0:
            yield f"GPU {number} has had {gpu['ecc']:.0f} uncorrectable memory errors", SICK, reset(number)
        if gpu["hot"] or gpu["braked"]:
            why = f"it is too hot ({gpu['celsius']:.0f} C)" if gpu["hot"] else "an external power brake is active"
            command = f"nvidia-smi -q -d PERFORMANCE -i {number}"
            fix = Fix(say="check its cooling and power supply", command=command, on=host)
            yield f"GPU {number} is throttled: {why}", SLOW, fix
        current, full = gpu["width"]
        if 0 < current * 4 <= full:
            fix = Fix(say="reseat the card, or check its riser")
            yield f"GPU {number} uses {current:.0f} of {full:.0f} PCIe lanes", SLOW, fix
    for uuid, failed, _ in answer["remapped"]:
        number = next((gpu["index"] for gpu in answer["gpus"] if gpu["uuid"] == uuid), uuid)
        if failed == "Yes":
            fix = Fix(say="have the card replaced")
            yield f"GPU {number} failed to remap bad memory rows", SICK, fix
        else:
            yield f"GPU {number} needs a reset to remap bad memory rows", SICK, reset(number)


def _kinds(cluster: Cluster) -> Findings:
    """Report different GPU models in one job."""
    models = {host: sorted({gpu["name"] for gpu in cluster.gpus(host)}) for host in cluster.answers(nvidia.gpus)}
    common, others = odd_ones({host: " and ".join(names) for host, names in models.items() if names})
    fix = Fix(say="use hosts with the same GPU model, or smaller batches on the slower ones")
    for host, kind in others.items():
        what = f"the GPUs are {kind}; the other hosts have {common}"
        yield Finding("warning", (host,), what, SLOW, fix, row=48)


def table(answer: nvidia.Gpus | None) -> dict[str, str]:
    """Facts for the report."""
    if not answer or not answer["gpus"]:
        return {"GPUs": f"{answer['devices']}" if answer and answer["devices"] else "none"}
    names = [gpu["name"] for gpu in answer["gpus"]]
    return {
        "GPUs": ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)),
        "GPU memory": size_text(answer["gpus"][0]["memory"] * 2**20, 2),
        "driver": answer["gpus"][0]["driver"],
    }


CHECK = Check(probe=nvidia.gpus, judge=judge, table=table, limit=LIMIT)

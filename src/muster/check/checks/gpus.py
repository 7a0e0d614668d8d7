"""Every GPU of a host answers, is healthy, and is of the same kind as the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster, Machine, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Fix
from muster.text import size_text

GONE = "CUDA error: no CUDA-capable device is detected, or a rank fewer than there should be"
SICK = "CUDA error: uncorrectable ECC error encountered, in the middle of the job"
SLOW = "all ranks wait for the slowest GPU, without a message"

LIMIT = 6.0
"""nvidia-smi answers in a tenth of a second; one that takes many is a sick GPU, or a driver that starts each time."""


def probe(ask: dict[str, Any]) -> dict[str, Any] | None:
    """Ask one host; None where there is no NVIDIA GPU to be seen."""
    import glob
    import os

    def smi(*arguments: str) -> list[list[str]]:
        import subprocess  # most hosts without a GPU never come here

        done = subprocess.run(
            ["nvidia-smi", *arguments, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        text = done.stdout.decode(errors="replace").strip()
        if done.returncode:
            raise RuntimeError(text or f"exit code {done.returncode}")
        return [[field.strip() for field in line.split(", ")] for line in text.splitlines()]

    def number(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            return -1.0

    devices = len([path for path in glob.glob("/dev/nvidia*") if path[len("/dev/nvidia") :].isdigit()])
    pci = 0
    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        with open(path) as file, open(os.path.join(os.path.dirname(path), "class")) as kind:
            pci += file.read().strip() == "0x10de" and kind.read().strip()[:6] in ("0x0300", "0x0302")
    if not any(os.access(f"{folder}/nvidia-smi", os.X_OK) for folder in os.environ.get("PATH", "").split(":")):
        return {"devices": devices, "pci": pci, "gpus": [], "problem": "", "asked": False} if devices else None
    fields = ["index", "uuid", "name", "driver_version", "memory.total", "memory.used", "temperature.gpu"]
    more = ["ecc.errors.uncorrected.volatile.total", "clocks_throttle_reasons.hw_thermal_slowdown"]
    more += ["clocks_throttle_reasons.hw_power_brake_slowdown", "pcie.link.width.current", "pcie.link.width.max"]
    newer = ["fabric.state"]
    rows: list[list[str]] = []
    problem = ""
    for query in (fields + more + newer, fields + more, fields):  # an old driver refuses fields it does not know
        try:
            rows = smi("--query-gpu=" + ",".join(query))
            problem = ""
            break
        except RuntimeError as error:
            problem = str(error)
            if "not a valid field" not in problem:
                break
    gpus: list[dict[str, Any]] = []
    for row in rows:
        row += [""] * (len(fields + more + newer) - len(row))
        gpus.append(
            {
                "index": int(number(row[0])),
                "uuid": row[1],
                "name": row[2],
                "driver": row[3],
                "memory": number(row[4]),
                "used": number(row[5]),
                "celsius": number(row[6]),
                "ecc": number(row[7]),
                "hot": row[8] == "Active",
                "braked": row[9] == "Active",
                "width": [number(row[10]), number(row[11])],
                "fabric": row[12],
            }
        )
    users: list[list[str]] = []
    remapped: list[list[str]] = []
    try:
        users = smi("--query-compute-apps=gpu_uuid,pid,process_name,used_memory") if gpus else []
        remapped = smi("--query-remapped-rows=gpu_uuid,remapped_rows.failure,remapped_rows.pending") if gpus else []
    except RuntimeError:
        pass  # an old driver, or cards that cannot tell
    processes: list[dict[str, Any]] = []
    for row in users:
        owner = -1
        try:
            owner = os.stat(f"/proc/{row[1]}").st_uid
        except OSError:
            pass  # of another container
        processes.append(
            {"uuid": row[0], "pid": int(number(row[1])), "name": row[2], "used": number(row[3]), "uid": owner}
        )
    return {
        "devices": devices,
        "pci": pci,
        "gpus": gpus,
        "problem": problem,
        "asked": True,
        "processes": processes,
        "remapped": [row for row in remapped if "Yes" in row[1:]],
    }


def judge(cluster: Cluster) -> Iterator[Finding]:
    """What is missing, what is sick, what is slow."""
    for machine in cluster.machines:
        if "gpus" in machine.hung:
            yield _finding(
                machine, "error", f"nvidia-smi does not answer within {LIMIT:.0f} s: a GPU or its driver hangs", GONE,
                Fix(command=f"{cluster.sudo(machine.name)}reboot", on=machine.name),
            )  # fmt: skip
        answer = machine.answers.get("gpus")
        if answer and answer["asked"]:
            yield from _missing(cluster, machine, answer)
            yield from _sick(cluster, machine, answer)
    yield from _kinds(cluster)


def _missing(cluster: Cluster, machine: Machine, answer: dict[str, Any]) -> Iterator[Finding]:
    seen = len(answer["gpus"])
    reboot = Fix(command=f"{cluster.sudo(machine.name)}reboot", on=machine.name, say="or leave this host out")
    if answer["problem"]:
        yield _finding(machine, "error", f"nvidia-smi fails: {answer['problem'].splitlines()[0]}", GONE, reboot)
    elif seen < answer["devices"] and not cluster.wanted.image:
        # row 48
        what = f"{seen} of its {answer['devices']} GPUs answer"
        yield _finding(machine, "warning", what, GONE, reboot)
    # With --env CUDA_VISIBLE_DEVICES the plan has counted already: an empty one is a run on the CPU.
    if 0 < machine.up["gpus"] < machine.ranks and "CUDA_VISIBLE_DEVICES" not in cluster.wanted.named:
        what = f"{machine.ranks} ranks need {machine.ranks} GPUs, but it has {machine.up['gpus']}"
        yield _finding(machine, "error", what, GONE, Fix(say=f"write `{machine.name}:{machine.up['gpus']}`"))


def _sick(cluster: Cluster, machine: Machine, answer: dict[str, Any]) -> Iterator[Finding]:
    sudo = cluster.sudo(machine.name)
    for gpu in answer["gpus"]:
        number = gpu["index"]
        if gpu["ecc"] > 0:
            what = f"GPU {number} has had {gpu['ecc']:.0f} memory errors it could not correct"
            reset = f"{sudo}nvidia-smi --gpu-reset -i {number}"
            yield _finding(machine, "warning", what, SICK, Fix(command=reset, on=machine.name))
        if gpu["hot"] or gpu["braked"]:
            why = f"it is too hot ({gpu['celsius']:.0f} C)" if gpu["hot"] else "its power is cut back from outside"
            fix = Fix(
                say="see to its cooling and power", command=f"nvidia-smi -q -d PERFORMANCE -i {number}", on=machine.name
            )
            yield _finding(machine, "warning", f"GPU {number} is slowed down: {why}", SLOW, fix)
        current, full = gpu["width"]
        if 0 < current * 4 <= full:
            what = f"GPU {number} has {current:.0f} of {full:.0f} PCIe lanes"
            yield _finding(machine, "warning", what, SLOW, Fix(say="reseat the card, or see to its riser"))
    for uuid, failed, _ in answer.get("remapped", []):
        number = next((gpu["index"] for gpu in answer["gpus"] if gpu["uuid"] == uuid), uuid)
        if failed == "Yes":
            what, fix = "could not replace broken memory by spare rows", Fix(say="have the card replaced")
        else:
            reset = f"{sudo}nvidia-smi --gpu-reset -i {number}"
            what, fix = "waits for a reset to replace broken memory", Fix(command=reset, on=machine.name)
        yield _finding(machine, "warning", f"GPU {number} {what}", SICK, fix)


def _kinds(cluster: Cluster) -> Iterator[Finding]:
    """Two kinds of GPU in one job."""
    kinds: dict[str, str] = {}
    for machine in cluster.machines:
        models: set[str] = {gpu["name"] for gpu in cluster.answer("gpus", machine.name).get("gpus", [])}
        if models:
            kinds[machine.name] = " and ".join(sorted(models))
    common, others = odd_ones(kinds)
    for name, kind in others.items():
        fix = Fix(say="give hosts of one kind to a job, or smaller batches to the slower ones")
        yield _finding(
            cluster.machine(name), "warning", f"its GPUs are {kind}, those of the others {common}", SLOW, fix
        )


def _finding(machine: Machine, severity: Any, what: str, symptom: str, fix: Fix) -> Finding:
    return Finding(severity=severity, hosts=(machine.name,), what=what, symptom=symptom, fix=fix, row=48)


def table(answer: dict[str, Any] | None) -> dict[str, str]:
    """Facts for people."""
    if not answer or not answer["gpus"]:
        return {"GPUs": f"{answer['devices']}" if answer and answer["devices"] else "none"}
    names = [gpu["name"] for gpu in answer["gpus"]]
    told = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return {
        "GPUs": told,
        "GPU memory": size_text(answer["gpus"][0]["memory"] * 2**20, 2),
        "driver": answer["gpus"][0]["driver"],
    }


CHECK = Check(probe=probe, judge=judge, table=table, limit=LIMIT)

"""Where GPUs are joined by NVSwitch, the service that makes the switches work runs, in the driver's version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Fix

SYMPTOM = "CUDA error 802: system not yet initialized, or NCCL that waits for ever at the first collective"


def probe(ask: dict[str, Any]) -> dict[str, Any] | None:
    """Ask one host; None where there is no NVSwitch."""
    import glob
    import re
    import subprocess

    def run(*argv: str) -> str:
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=2
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.decode(errors="replace").strip()

    if not glob.glob("/dev/nvidia-nvswitch[0-9]*"):
        return None
    version = re.search(r"(\d+\.\d+[\d.]*)", run("nv-fabricmanager", "--version"))
    return {
        "state": run("systemctl", "is-active", "nvidia-fabricmanager"),
        "version": version.group(1) if version else "",
    }


def judge(cluster: Cluster) -> Iterator[Finding]:
    """Without it NCCL hangs, so it is an error."""
    for name, answer in cluster.answers("fabric").items():
        if answer is None:
            yield from _unregistered(cluster, name)
            continue
        gpus: list[dict[str, Any]] = cluster.answer("gpus", name).get("gpus", [])
        driver = gpus[0]["driver"] if gpus else ""
        sudo = cluster.sudo(name)
        if answer["version"] and driver and answer["version"] != driver:
            major = driver.partition(".")[0]
            what = f"its fabric manager is {answer['version']}, its driver {driver}: they must be the same"
            command = f"{sudo}apt-get install -y --allow-downgrades nvidia-fabricmanager-{major}={driver}-1"
            command += f" && {sudo}systemctl restart nvidia-fabricmanager"
        elif answer["state"] not in ("active", ""):
            what = f"nvidia-fabricmanager is {answer['state'].splitlines()[0]}, and its GPUs are joined by NVSwitch"
            command = f"{sudo}systemctl restart nvidia-fabricmanager"
        else:
            continue
        # row 26
        yield Finding(
            severity="error", hosts=(name,), what=what, symptom=SYMPTOM, fix=Fix(command=command, on=name), row=26
        )


def _unregistered(cluster: Cluster, name: str) -> Iterator[Finding]:
    """In a container the service cannot be seen, but each GPU says whether it has joined the others."""
    gpus: list[dict[str, Any]] = cluster.answer("gpus", name).get("gpus", [])
    waiting = [str(gpu["index"]) for gpu in gpus if gpu["fabric"] in ("In Progress", "Not Started")]
    if waiting:
        what = f"GPU {', '.join(waiting)} has not joined the others over NVLink: the fabric manager does not run"
        fix = Fix(command="sudo systemctl restart nvidia-fabricmanager", on=name)
        yield Finding(severity="error", hosts=(name,), what=what, symptom=SYMPTOM, fix=fix, row=26)


CHECK = Check(probe=probe, judge=judge, limit=5.0)

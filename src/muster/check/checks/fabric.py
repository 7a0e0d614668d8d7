"""Where GPUs are joined by NVSwitch, the service that makes the switches work runs, in the driver's version."""

from __future__ import annotations

from muster.agent.probes import nvidia
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = "CUDA error 802: system not yet initialized, or NCCL that waits for ever at the first collective"


def judge(cluster: Cluster) -> Findings:
    """Without it NCCL hangs, so it is an error."""
    for name, answer in cluster.answers(nvidia.fabric).items():
        found = _unregistered(cluster, name) if answer is None else _manager(cluster, name, **answer)
        if found is not None:
            what, command = found
            yield Finding("error", (name,), what, SYMPTOM, Fix(command=command, on=name), row=26)


def _manager(cluster: Cluster, name: str, state: str, version: str) -> tuple[str, str] | None:
    """What is wrong with the service, and the command that repairs it."""
    driver = next((gpu["driver"] for gpu in cluster.gpus(name)), "")
    sudo = cluster.sudo(name)
    restart = f"{sudo}systemctl restart nvidia-fabricmanager"
    if version and driver and version != driver:
        package = f"nvidia-fabricmanager-{driver.partition('.')[0]}={driver}-1"
        what = f"its fabric manager is {version}, its driver {driver}: they must be the same"
        return what, f"{sudo}apt-get install -y --allow-downgrades {package} && {restart}"
    if state not in ("active", ""):
        return f"nvidia-fabricmanager is {state.splitlines()[0]}, and its GPUs are joined by NVSwitch", restart
    return None


def _unregistered(cluster: Cluster, name: str) -> tuple[str, str] | None:
    """In a container the service cannot be seen, but each GPU says whether it has joined the others."""
    gpus = cluster.gpus(name)
    waiting = ", ".join(str(gpu["index"]) for gpu in gpus if gpu["fabric"] in ("In Progress", "Not Started"))
    if not waiting:
        return None
    what = f"GPU {waiting} has not joined the others over NVLink: the fabric manager does not run"
    return what, "sudo systemctl restart nvidia-fabricmanager"


CHECK = Check(probe=nvidia.fabric, judge=judge, limit=5.0)

"""On hosts with NVSwitch, the NVIDIA fabric manager runs and has the same version as the driver."""

from __future__ import annotations

from muster.agent.probes import nvidia
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = "CUDA error 802: system not yet initialized, or NCCL hangs in the first collective"


def judge(cluster: Cluster) -> Findings:
    """An error, because NCCL hangs without it."""
    for name, answer in cluster.answers(nvidia.fabric).items():
        found = _unregistered(cluster, name) if answer is None else _manager(cluster, name, **answer)
        if found is not None:
            what, command = found
            yield Finding("error", (name,), what, SYMPTOM, Fix(command=command, on=name), row=26)


def _manager(cluster: Cluster, name: str, state: str, version: str) -> tuple[str, str] | None:
    """What is wrong with the service, and the command that fixes it."""
    driver = next((gpu["driver"] for gpu in cluster.gpus(name)), "")
    sudo = cluster.sudo(name)
    restart = f"{sudo}systemctl restart nvidia-fabricmanager"
    if version and driver and version != driver:
        package = f"nvidia-fabricmanager-{driver.partition('.')[0]}={driver}-1"
        what = f"the fabric manager ({version}) and the driver ({driver}) must have the same version"
        return what, f"{sudo}apt-get install -y --allow-downgrades {package} && {restart}"
    if state not in ("active", ""):
        return f"nvidia-fabricmanager is {state.splitlines()[0]}, but the GPUs are connected by NVSwitch", restart
    return None


def _unregistered(cluster: Cluster, name: str) -> tuple[str, str] | None:
    """In a container the service is not visible, but each GPU reports whether it has joined the fabric."""
    gpus = cluster.gpus(name)
    waiting = ", ".join(str(gpu["index"]) for gpu in gpus if gpu["fabric"] in ("In Progress", "Not Started"))
    if not waiting:
        return None
    what = f"GPU {waiting} has not joined the NVLink fabric: the fabric manager is not running"
    return what, "sudo systemctl restart nvidia-fabricmanager"


CHECK = Check(probe=nvidia.fabric, judge=judge, limit=5.0)

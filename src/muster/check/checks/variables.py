"""Variables for NCCL and gloo fit the host they are set on: copied from another cluster they slow a job or hang it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Severity
from muster.check.fixes import unset

SLOW = "NCCL INFO Using network Socket, or a hang: the job is slow, or never gets past its first collective"

FOR_DEBUGGING = {
    "NCCL_P2P_DISABLE": "GPUs of one host talk through its memory instead of NVLink or PCIe",
    "NCCL_SHM_DISABLE": "GPUs of one host talk over the network",
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
}


def probe(ask: dict[str, Any]) -> dict[str, Any]:
    """Ask one host: the variables a rank would have there, and which file of the host sets each."""
    import glob
    import os
    import re

    prefixes = ("NCCL_", "GLOO_", "UCX_", "FI_", "TORCH_NCCL_", "OMP_", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES")
    prefixes += ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    env = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    files = [
        "~/.bashrc",
        "~/.bash_profile",
        "~/.profile",
        "~/.zshenv",
        "~/.cshrc",
        "/etc/environment",
        "/etc/bash.bashrc",
    ]
    files += [*sorted(glob.glob("/etc/profile.d/*.sh")), "~/.ssh/environment", "~/.nccl.conf", "/etc/nccl.conf"]
    sources: dict[str, str] = {}
    for path in files:
        try:
            with open(os.path.expanduser(path), errors="replace") as file:
                lines = file.readlines()
        except OSError:
            continue
        for line in lines:
            match = re.match(r"\s*(?:export\s+|setenv\s+)?([A-Z][A-Z0-9_]*)[= ]\s*['\"]?([^'\"#\n]*)", line)
            if match and match.group(1).startswith(prefixes):
                sources.setdefault(match.group(1), path)
                if path.endswith("nccl.conf"):
                    env.setdefault(match.group(1), match.group(2).strip())
    gone = {}
    for name in ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"):
        if "/" in env.get(name, "") and not os.path.exists(env[name]):
            gone[name] = env[name]
    try:
        adapters = sorted(os.listdir("/sys/class/infiniband"))
    except OSError:
        adapters = []
    return {"env": env, "sources": sources, "gone": gone, "adapters": adapters}


def judge(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each variable that cannot be right."""
    found = cluster.answers("variables")
    for name, answer in found.items():
        for variable, what, severity in _misfits(answer):
            # row 27
            yield Finding(
                severity=severity,
                hosts=(name,),
                what=what,
                symptom=SLOW,
                fix=unset(cluster, name, variable, answer["sources"]),
                row=27,
            )
    yield from _only_here(cluster, found)


def _misfits(answer: dict[str, Any]) -> Iterator[tuple[str, str, Severity]]:
    env, adapters = answer["env"], answer["adapters"]
    for variable, path in answer["gone"].items():
        yield variable, f"{variable} names {path}, which is not there", "warning"
    wanted = env.get("NCCL_IB_HCA", "")
    if wanted and not wanted.startswith("^") and not _some(wanted, adapters):
        have = ", ".join(adapters) or "none"
        yield (
            "NCCL_IB_HCA",
            f"NCCL_IB_HCA={wanted} names InfiniBand adapters it does not have (it has {have})",
            "warning",
        )
    if env.get("NCCL_NET") == "IB" and not adapters:
        yield "NCCL_NET", "NCCL_NET=IB asks for InfiniBand, and it has none", "error"
    if env.get("FI_PROVIDER") == "efa" and not adapters:
        yield "FI_PROVIDER", "FI_PROVIDER=efa asks for the network of AWS, and it has no such adapter", "warning"
    if env.get("NCCL_IB_DISABLE") == "1" and adapters:
        yield "NCCL_IB_DISABLE", f"NCCL_IB_DISABLE=1 leaves its {', '.join(adapters)} unused", "warning"
    for variable, effect in FOR_DEBUGGING.items():
        if env.get(variable) == "1":
            yield variable, f"{variable}=1 is set: {effect}", "warning"


def _some(wanted: str, adapters: list[str]) -> bool:
    """NCCL takes a list of beginnings, or with `=` of whole names, each with a port."""
    exact = wanted.startswith("=")
    names = [part.partition(":")[0] for part in wanted.lstrip("=").split(",")]
    return any(adapter == name if exact else adapter.startswith(name) for adapter in adapters for name in names)


def _only_here(cluster: Cluster, found: dict[str, Any]) -> Iterator[Finding]:
    """What a host sets by itself, and others do not or set differently."""
    names = {name for answer in found.values() for name in answer["sources"] if name.startswith(("NCCL_", "GLOO_"))}
    for variable in sorted(names - {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} - cluster.wanted.env.keys()):
        values = {host: str(answer["env"].get(variable, "")) for host, answer in found.items()}
        common, others = odd_ones(values)
        for host, value in others.items():
            if value and any(variable == misfit[0] for misfit in _misfits(found[host])):
                continue  # told already
            rest = f"{common} on the others" if common else "unset on the others"
            sources = found[host]["sources"]
            source = f" ({sources[variable]})" if variable in sources else ""
            yield Finding(
                severity="warning",
                hosts=(host,),
                what=f"{variable} is {value or 'unset'} there{source}, and {rest}",
                symptom=SLOW,
                fix=unset(cluster, host, variable, sources),
                row=27,
            )


CHECK = Check(probe=probe, judge=judge)

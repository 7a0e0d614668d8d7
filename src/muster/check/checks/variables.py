"""Variables for NCCL and gloo fit the host they are set on: copied from another cluster they slow a job or hang it."""

from __future__ import annotations

from collections.abc import Iterator

from muster.agent.probes import operating_system
from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Severity
from muster.check.fixes import unset

SLOW = "NCCL INFO Using network Socket, or a hang: the job is slow, or never gets past its first collective"

FOR_DEBUGGING = {
    "NCCL_P2P_DISABLE": "GPUs of one host talk through its memory instead of NVLink or PCIe",
    "NCCL_SHM_DISABLE": "GPUs of one host talk over the network",
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
}


def judge(cluster: Cluster) -> Findings:
    """One finding for each variable that cannot be right."""
    found = cluster.answers(operating_system.variables)
    for name, answer in found.items():
        for variable, what, severity in _misfits(answer):
            yield Finding(severity, (name,), what, SLOW, unset(cluster, name, variable), row=27)
    yield from _only_here(cluster, found)


def _misfits(answer: operating_system.Variables) -> Iterator[tuple[str, str, Severity]]:
    env, adapters = answer["env"], answer["adapters"]
    for variable, path in answer["gone"].items():
        yield variable, f"{variable} names {path}, which is not there", "warning"
    wanted = env.get("NCCL_IB_HCA", "")
    if wanted and not wanted.startswith("^") and not _some(wanted, adapters):
        have = ", ".join(adapters) or "none"
        what = f"NCCL_IB_HCA={wanted} names InfiniBand adapters it does not have (it has {have})"
        yield "NCCL_IB_HCA", what, "warning"
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


def _only_here(cluster: Cluster, found: dict[str, operating_system.Variables]) -> Findings:
    """What a host sets by itself, and others do not or set differently."""
    names = {name for answer in found.values() for name in answer["sources"] if name.startswith(("NCCL_", "GLOO_"))}
    for variable in sorted(names - {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} - cluster.wanted.env.keys()):
        values = {host: answer["env"].get(variable, "") for host, answer in found.items()}
        common, others = odd_ones(values)
        for host, value in others.items():
            if value and any(variable == misfit[0] for misfit in _misfits(found[host])):
                continue  # told already
            rest = f"{common} on the others" if common else "unset on the others"
            sources = found[host]["sources"]
            source = f" ({sources[variable]})" if variable in sources else ""
            what = f"{variable} is {value or 'unset'} there{source}, and {rest}"
            yield Finding("warning", (host,), what, SLOW, unset(cluster, host, variable), row=27)


CHECK = Check(probe=operating_system.variables, judge=judge)

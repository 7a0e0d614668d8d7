"""Environment variables for NCCL and gloo fit the host; copied from another cluster they slow a job down or hang it."""

from __future__ import annotations

from collections.abc import Iterator

from muster.agent.probes import operating_system
from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Severity
from muster.check.fixes import unset

SLOW = "NCCL INFO Using network Socket and a slow job, or a hang in the first collective"

FOR_DEBUGGING = {
    "NCCL_P2P_DISABLE": "GPUs of one host communicate through host memory instead of NVLink or PCIe",
    "NCCL_SHM_DISABLE": "GPUs of one host communicate over the network",
    "CUDA_LAUNCH_BLOCKING": "every kernel launch blocks until the kernel is done",
}


def judge(cluster: Cluster) -> Findings:
    """One finding for each variable with a wrong value."""
    found = cluster.answers(operating_system.variables)
    for name, answer in found.items():
        for variable, what, severity in _misfits(answer):
            yield Finding(severity, (name,), what, SLOW, unset(cluster, name, variable), row=27)
    yield from _only_here(cluster, found)


def _misfits(answer: operating_system.Variables) -> Iterator[tuple[str, str, Severity]]:
    env, adapters = answer["env"], answer["adapters"]
    for variable, path in answer["gone"].items():
        yield variable, f"{variable}={path}: no such file", "warning"
    wanted = env.get("NCCL_IB_HCA", "")
    if wanted and not wanted.startswith("^") and not _some(wanted, adapters):
        have = ", ".join(adapters) or "none"
        what = f"NCCL_IB_HCA={wanted}: no such InfiniBand adapter (available: {have})"
        yield "NCCL_IB_HCA", what, "warning"
    if env.get("NCCL_NET") == "IB" and not adapters:
        yield "NCCL_NET", "NCCL_NET=IB requires InfiniBand, but there is no adapter", "error"
    if env.get("FI_PROVIDER") == "efa" and not adapters:
        yield "FI_PROVIDER", "FI_PROVIDER=efa requires AWS EFA, but there is no adapter", "warning"
    if env.get("NCCL_IB_DISABLE") == "1" and adapters:
        yield "NCCL_IB_DISABLE", f"NCCL_IB_DISABLE=1 leaves {', '.join(adapters)} unused", "warning"
    for variable, effect in FOR_DEBUGGING.items():
        if env.get(variable) == "1":
            yield variable, f"{variable}=1 is set: {effect}", "warning"


def _some(wanted: str, adapters: list[str]) -> bool:
    """Whether any adapter matches: NCCL takes a list of prefixes, or with `=` of exact names, each with a port."""
    exact = wanted.startswith("=")
    names = [part.partition(":")[0] for part in wanted.lstrip("=").split(",")]
    return any(adapter == name if exact else adapter.startswith(name) for adapter in adapters for name in names)


def _only_here(cluster: Cluster, found: dict[str, operating_system.Variables]) -> Findings:
    """Report variables that one host sets in its own files and that differ on the others."""
    names = {name for answer in found.values() for name in answer["sources"] if name.startswith(("NCCL_", "GLOO_"))}
    for variable in sorted(names - {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} - cluster.wanted.env.keys()):
        values = {host: answer["env"].get(variable, "") for host, answer in found.items()}
        common, others = odd_ones(values)
        for host, value in others.items():
            if value and any(variable == misfit[0] for misfit in _misfits(found[host])):
                continue  # already reported
            rest = f"{common} on the other hosts" if common else "unset on the other hosts"
            sources = found[host]["sources"]
            source = f" ({sources[variable]})" if variable in sources else ""
            what = f"{variable} is {value or 'unset'}{source}, but {rest}"
            yield Finding("warning", (host,), what, SLOW, unset(cluster, host, variable), row=27)


CHECK = Check(probe=operating_system.variables, judge=judge)

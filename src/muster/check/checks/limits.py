"""The limits on locked memory and open files are high enough for RDMA and for the number of ranks."""

from __future__ import annotations

from muster.agent.probes import host_network, operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.check.fixes import writing

LOCKED = "ibv_reg_mr_iova2 failed ... Cannot allocate memory"
FILES = "OSError: [Errno 24] Too many open files"

ENOUGH_LOCKED = 4 << 30
"""Bytes of locked memory: NCCL registers its buffers, a few gigabytes with many GPUs. The usual value is unlimited."""

CONTAINER_SERVICES = {"dockerd": "docker", "containerd": "containerd"}


def judge(cluster: Cluster) -> Findings:
    """Locked memory matters only with RDMA, open files only with many ranks."""
    need = 256 + 4 * cluster.world_size
    for name, found in cluster.answers(operating_system.limits).items():
        locked, files = found["memlock"], found["nofile"]
        rdma = cluster.machine(name).answer(host_network.rdma)
        if rdma and rdma["ports"] and 0 <= locked["soft"] < ENOUGH_LOCKED:
            what = f"ranks can lock only {locked['soft'] >> 10} KB of memory ({_origin(locked)}); RDMA needs more"
            fix = _fix(cluster, name, "memlock", "unlimited", locked)
            yield Finding("warning", (name,), what, LOCKED, fix, row=31)
        if 0 <= files["soft"] < need:
            what = f"ranks can open only {files['soft']} files ({_origin(files)}); this job needs about {need}"
            fix = _fix(cluster, name, "nofile", str(max(65536, need)), files)
            yield Finding("warning", (name,), what, FILES, fix, row=32)


def _origin(limit: operating_system.Limit) -> str:
    pid, comm = limit["by"]
    if limit["file"]:
        return f"`ulimit {limit['flag']}` in {limit['file']}"
    return f"set by {comm}, process {pid}" if pid else "set at login"


def _fix(cluster: Cluster, host: str, name: str, value: str, limit: operating_system.Limit) -> Fix:
    sudo = cluster.sudo(host)
    pid, comm = limit["by"]
    if cluster.wanted.pods:
        say = f"raise the limit {name} of the container runtime on the nodes, or call `ulimit` in the pod's command"
        return Fix(say=say)
    if cluster.wanted.image:
        number = "-1" if value == "unlimited" else value
        return Fix(command=cluster.wanted.with_container_args(f"--ulimit {name}={number}"))
    if limit["file"]:
        command = f'sed -i "/ulimit .*{limit["flag"]}/d" {limit["file"]}'
        return Fix(command=writing(cluster, host, limit["file"]) + command, on=host)
    services = _services()
    if comm in services:
        unit, word = services[comm], "infinity" if value == "unlimited" else value
        folder = f"/etc/systemd/system/{unit}.service.d"
        command = (
            f"{sudo}mkdir -p {folder} && "
            f'printf "[Service]\\nLimit{name.upper()}={word}\\n" | {sudo}tee {folder}/{name}.conf && '
            f"{sudo}systemctl daemon-reload && {sudo}systemctl restart {unit}"
        )
        return Fix(command=command, on=host)
    line = f'echo "* - {name} {value}" | {sudo}tee /etc/security/limits.d/{name}.conf'
    if comm.startswith("sshd"):
        now = str(limit["hard"]) if name == "nofile" and limit["hard"] >= 4096 else value
        line += f" && {sudo}prlimit --{name}={now}:{now} --pid {pid}"
    return Fix(command=line, on=host, say="takes effect at the next login")


def _services() -> dict[str, str]:
    """Daemons that start ranks, with their systemd units."""
    from muster.engines.table import built_in

    return {name: unit for engine in built_in() for name, unit in engine.services.items()} | CONTAINER_SERVICES


def table(answer: dict[str, operating_system.Limit]) -> dict[str, str]:
    """Facts for the report."""
    locked = answer["memlock"]["soft"]
    return {
        "locked memory": "unlimited" if locked < 0 else f"{locked >> 10} KB",
        "open files": "unlimited" if answer["nofile"]["soft"] < 0 else str(answer["nofile"]["soft"]),
    }


CHECK = Check(probe=operating_system.limits, judge=judge, table=table)

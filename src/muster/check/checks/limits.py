"""Ranks may lock the memory that RDMA needs, and open as many files as there are peers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster, Machine
from muster.check.definition import Check
from muster.check.finding import Finding, Fix

LOCKED = "ibv_reg_mr_iova2 failed ... Cannot allocate memory"
FILES = "OSError: [Errno 24] Too many open files"

ENOUGH_LOCKED = 4 << 30
"""NCCL registers its buffers, some gigabytes for many GPUs; people set it to unlimited."""

CONTAINER_SERVICES = {"dockerd": "docker", "containerd": "containerd"}


def probe(ask: dict[str, Any]) -> dict[str, Any]:
    """Ask one host: each limit, and who among our ancestors began with it. -1 is no limit."""
    import os
    import re
    import resource

    def limit_of(pid: int, title: str) -> int:
        with open(f"/proc/{pid}/limits") as file:
            for line in file:
                if line.startswith(title):
                    soft = line[len(title) :].split()[0]
                    return -1 if soft == "unlimited" else int(soft)
        return -1

    def parent(pid: int) -> int:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])

    def who(title: str, own: int) -> list[Any]:
        pid, found = os.getppid(), [0, ""]  # our parent, the agent, has raised its own limit on files
        pid = parent(pid)
        try:
            while pid > 0 and limit_of(pid, title) == own:
                with open(f"/proc/{pid}/comm") as file:
                    found = [pid, file.read().strip()]
                pid = parent(pid)
        except OSError:
            pass
        return found

    answer: dict[str, Any] = {}
    for name, number, title, flag in (
        ("memlock", resource.RLIMIT_MEMLOCK, "Max locked memory", "-l"),
        ("nofile", resource.RLIMIT_NOFILE, "Max open files", "-n"),
    ):
        soft, hard = resource.getrlimit(number)
        soft, hard = (-1 if value == resource.RLIM_INFINITY else value for value in (soft, hard))
        lowered = ""
        for path in ("~/.bashrc", "~/.profile", "~/.zshenv", "/etc/bash.bashrc"):
            try:
                with open(os.path.expanduser(path), errors="replace") as file:
                    if re.search(rf"^\s*ulimit\s+(-[SH]\s*)?{flag}\s", file.read(), re.MULTILINE):
                        lowered = path
                        break
            except OSError:
                pass
        answer[name] = {"soft": soft, "hard": hard, "by": who(title, soft), "file": lowered, "flag": flag}
    return answer


def judge(cluster: Cluster) -> Iterator[Finding]:
    """Locked memory matters only where there is RDMA; files, where there are many ranks."""
    need = 256 + 4 * cluster.world_size
    for machine in cluster.machines:
        found = machine.answers.get("limits")
        if found is None:
            continue
        locked, files = found["memlock"]["soft"], found["nofile"]["soft"]
        has_rdma = bool(cluster.answer("rdma", machine.name).get("ports"))
        if has_rdma and 0 <= locked < ENOUGH_LOCKED:
            # row 31
            yield Finding(
                severity="warning",
                hosts=(machine.name,),
                what=f"its ranks may lock {locked >> 10} KB of memory ({_origin(found['memlock'])}): RDMA needs more",
                symptom=LOCKED,
                fix=_fix(cluster, machine, "memlock", "unlimited", found["memlock"]),
                row=31,
            )
        if 0 <= files < need:
            # row 32
            yield Finding(
                severity="warning",
                hosts=(machine.name,),
                what=f"its ranks may open {files} files ({_origin(found['nofile'])}), and this job needs some {need}",
                symptom=FILES,
                fix=_fix(cluster, machine, "nofile", str(max(65536, need)), found["nofile"]),
                row=32,
            )


def _origin(limit: dict[str, Any]) -> str:
    pid, comm = limit["by"]
    if limit["file"]:
        return f"`ulimit {limit['flag']}` in {limit['file']}"
    return f"from {comm}, process {pid}" if pid else "set at the login"


def _fix(cluster: Cluster, machine: Machine, name: str, value: str, limit: dict[str, Any]) -> Fix:
    sudo = cluster.sudo(machine.name)
    pid, comm = limit["by"]
    if cluster.wanted.image:
        number = "-1" if value == "unlimited" else value
        return Fix(command=cluster.wanted.with_container_args(f"--ulimit {name}={number}"))
    if limit["file"]:
        owner = sudo if limit["file"].startswith("/etc") else ""
        return Fix(command=f'{owner}sed -i "/ulimit .*{limit["flag"]}/d" {limit["file"]}', on=machine.name)
    services = _services()
    if comm in services:
        unit, word = services[comm], "infinity" if value == "unlimited" else value
        folder = f"/etc/systemd/system/{unit}.service.d"
        return Fix(
            command=f"{sudo}mkdir -p {folder} && "
            f'printf "[Service]\\nLimit{name.upper()}={word}\\n" | {sudo}tee {folder}/{name}.conf && '
            f"{sudo}systemctl daemon-reload && {sudo}systemctl restart {unit}",
            on=machine.name,
        )
    line = f'echo "* - {name} {value}" | {sudo}tee /etc/security/limits.d/{name}.conf'
    if comm.startswith("sshd"):
        now = str(limit["hard"]) if name == "nofile" and limit["hard"] >= 4096 else value
        line += f" && {sudo}prlimit --{name}={now}:{now} --pid {pid}"
    return Fix(command=line, on=machine.name, say="holds from the next login on")


def _services() -> dict[str, str]:
    """Daemons that start ranks, and the systemd unit of each."""
    from muster.engines.table import built_in

    return {name: unit for engine in built_in() for name, unit in engine.services.items()} | CONTAINER_SERVICES


def table(answer: dict[str, Any]) -> dict[str, str]:
    """Facts for people."""
    locked = answer["memlock"]["soft"]
    return {
        "locked memory": "unlimited" if locked < 0 else f"{locked >> 10} KB",
        "open files": "unlimited" if answer["nofile"]["soft"] < 0 else str(answer["nofile"]["soft"]),
    }


CHECK = Check(probe=probe, judge=judge, table=table)

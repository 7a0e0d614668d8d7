"""NCCL can use the InfiniBand or other RDMA network of a host; otherwise it silently falls back to TCP."""

from __future__ import annotations

from muster.agent.probes import host_network
from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.text import count

SYMPTOM = "`NCCL INFO Using network Socket`, and collectives that are ten times slower"


def judge(cluster: Cluster) -> Findings:
    """Check only hosts with GPUs, because only NCCL uses RDMA."""
    answers = cluster.answers(host_network.rdma)
    with_gpus = {name: answer for name, answer in answers.items() if cluster.machine(name).up["gpus"]}
    for name, answer in with_gpus.items():
        down = [port["name"] for port in answer["ports"] if port["state"] not in ("active", "")]
        if not answer["ports"]:
            continue
        if not answer["devices"]:
            what, fix = "has InfiniBand, but no device /dev/infiniband/uverbs*", _devices(cluster, name)
        elif not answer["verbs"]:
            what = "has InfiniBand, but not libibverbs, which NCCL needs to use it"
            install = f"{cluster.sudo(name)}apt-get install -y libibverbs1 ibverbs-providers"
            fix = Fix(command=install, on=name)
        elif not answer["plugin"] and any(port["driver"] == "efa" for port in answer["ports"]):
            what = "has AWS EFA, but not the plugin that NCCL needs to use it"
            fix = Fix(say="install aws-ofi-nccl and add its lib directory to LD_LIBRARY_PATH")
        elif down and len(down) == len(answer["ports"]):
            what = f"no InfiniBand port is active ({', '.join(down)})"
            fix = Fix(say="check its cable and subnet manager", command="ibstat", on=name)
        else:
            continue
        yield Finding("warning", (name,), what, SYMPTOM, fix, row=18)
    common, others = odd_ones({name: len(answer["ports"]) for name, answer in with_gpus.items()})
    for name, ports in others.items():
        what = f"has {count(ports, 'InfiniBand port')}; the other hosts have {common}"
        fix = Fix(say="load its driver, or leave the host out of -H", command="ibstat", on=name)
        yield Finding("warning", (name,), what, SYMPTOM, fix, row=18)


def _devices(cluster: Cluster, host: str) -> Fix:
    if cluster.wanted.pods:
        return Fix(say="request the RDMA device of your cluster in resources.limits, such as rdma/hca")
    if cluster.wanted.image:
        return Fix(command=cluster.wanted.with_container_args("--device=/dev/infiniband --ulimit memlock=-1"))
    return Fix(command=f"{cluster.sudo(host)}modprobe ib_uverbs", on=host)


def table(answer: host_network.Rdma) -> dict[str, str]:
    """Facts for the report."""
    ports = ", ".join(f"{port['name']} {port['state']}" for port in answer["ports"])
    return {"InfiniBand": ports} if ports else {}


CHECK = Check(probe=host_network.rdma, judge=judge, table=table)

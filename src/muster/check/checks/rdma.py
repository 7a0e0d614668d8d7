"""Where a host has InfiniBand or another RDMA network, NCCL can use it; it falls back to TCP without a word."""

from __future__ import annotations

from muster.agent.probes import host_network
from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.text import count

SYMPTOM = "one line, `NCCL INFO Using network Socket`, and collectives ten times slower"


def judge(cluster: Cluster) -> Findings:
    """Only NCCL uses it, so it matters on hosts with GPUs."""
    answers = cluster.answers(host_network.rdma)
    with_gpus = {name: answer for name, answer in answers.items() if cluster.machine(name).up["gpus"]}
    for name, answer in with_gpus.items():
        down = [port["name"] for port in answer["ports"] if port["state"] not in ("active", "")]
        if not answer["ports"]:
            continue
        if not answer["devices"]:
            what, fix = "it has InfiniBand, but no /dev/infiniband/uverbs for programs", _devices(cluster, name)
        elif not answer["verbs"]:
            what = "it has InfiniBand, but not the library libibverbs, with which NCCL uses it"
            install = f"{cluster.sudo(name)}apt-get install -y libibverbs1 ibverbs-providers"
            fix = Fix(command=install, on=name)
        elif not answer["plugin"] and any(port["driver"] == "efa" for port in answer["ports"]):
            what = "it has the network of AWS (EFA), but not the plug-in with which NCCL uses it"
            fix = Fix(say="install aws-ofi-nccl there, and put its lib folder into LD_LIBRARY_PATH")
        elif down and len(down) == len(answer["ports"]):
            what = f"no port of its InfiniBand is active ({', '.join(down)})"
            fix = Fix(say="see to its cable and subnet manager", command="ibstat", on=name)
        else:
            continue
        yield Finding("warning", (name,), what, SYMPTOM, fix, row=18)
    common, others = odd_ones({name: len(answer["ports"]) for name, answer in with_gpus.items()})
    for name, ports in others.items():
        what = f"it has {count(ports, 'InfiniBand port')}, the others {common}"
        fix = Fix(say="load its driver, or leave it out", command="ibstat", on=name)
        yield Finding("warning", (name,), what, SYMPTOM, fix, row=18)


def _devices(cluster: Cluster, host: str) -> Fix:
    if cluster.wanted.image:
        return Fix(command=cluster.wanted.with_container_args("--device=/dev/infiniband --ulimit memlock=-1"))
    return Fix(command=f"{cluster.sudo(host)}modprobe ib_uverbs", on=host)


def table(answer: host_network.Rdma) -> dict[str, str]:
    """Facts for people."""
    told = ", ".join(f"{port['name']} {port['state']}" for port in answer["ports"])
    return {"InfiniBand": told} if told else {}


CHECK = Check(probe=host_network.rdma, judge=judge, table=table)

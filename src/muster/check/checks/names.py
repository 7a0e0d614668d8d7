"""Name and address lookups are fast."""

from __future__ import annotations

from muster.agent.probes import host_network
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = "the start takes minutes; `The hostname of the client socket cannot be retrieved` for each connection"

LIMIT = 3.0

_DNS = "kubectl -n kube-system get pods -l k8s-app=kube-dns"


def judge(cluster: Cluster) -> Findings:
    """Report slow lookups, including those that exceed the timeout of the probe."""
    for machine in cluster.machines:
        answer = machine.answer(host_network.names)
        if answer is not None and answer["seconds"] > host_network.SLOW_LOOKUP:
            what = f"looking up {answer['what']} takes {answer['seconds']:.1f} s"
        elif "names" in machine.hung:
            what = f"name lookups take more than {LIMIT:.0f} s"
        else:
            continue
        yield Finding("warning", (machine.name,), what, SYMPTOM, _fix(cluster, machine.name), row=14)


def _fix(cluster: Cluster, host: str) -> Fix:
    if cluster.wanted.pods:
        return Fix(say="shows whether the cluster's DNS runs", command=_DNS)
    own = {m.name: m.name for m in cluster.machines}
    own |= {name: answer["name"] for name, answer in cluster.answers(host_network.own_name).items() if answer["name"]}
    addresses = {name: cluster.address(name) for name in own}
    lines = [f"{address} {own[name]}\\n" for name, address in addresses.items() if address is not None]
    if not lines:
        return Fix(say="fix its resolver (/etc/resolv.conf)")
    command = f'printf "{"".join(lines)}" | {cluster.sudo(host)}tee -a /etc/hosts'
    return Fix(command=command, on=host, say="or fix its resolver: /etc/resolv.conf")


CHECK = Check(probe=host_network.names, judge=judge, limit=LIMIT)

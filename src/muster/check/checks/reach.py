"""Every host can connect to every other host on ephemeral ports, in both directions.

Rows 5, 11 and 12 of the catalog.
"""

from __future__ import annotations

from muster.agent.probes import host_network
from muster.check.cluster_facts import Cluster, Reach
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.check.fixes import open_firewall
from muster.text import names

SYMPTOM = "the start looks fine, then after a minute on both sides: Gloo connectFullMesh failed, Connect timeout"

Pair = tuple[str, str]
"""Dialing host and target."""


def judge(cluster: Cluster) -> Findings:
    """Attribute the fault to a host that no other reaches, to one that reaches no other, or to a pair."""
    if cluster.reach is None or len(cluster.machines) < 2:
        return
    outcomes = _outcomes(cluster.reach)
    broken = {pair: problems[0] for pair, problems in outcomes.items() if all(problems)}
    explained: set[Pair] = set()
    for name in (machine.name for machine in cluster.machines):
        into = [pair for pair in broken if pair[1] == name]
        out = [pair for pair in broken if pair[0] == name]
        dialers, targets = [pair[0] for pair in into], [pair[1] for pair in out]
        if into and len(into) == sum(pair[1] == name for pair in outcomes) and not explained.issuperset(into):
            row, also = 11, "" if out else ", although it can connect to them"
            what = f"{names(dialers)} cannot connect to this host ({broken[into[0]]}){also}"
            fix = open_firewall(cluster, name, dialers, "in")
            explained.update(into)
        elif out and len(out) == sum(pair[0] == name for pair in outcomes) and not explained.issuperset(out):
            row, what = 12, f"cannot connect to {names(targets)} ({broken[out[0]]})"
            fix = open_firewall(cluster, name, targets, "out")
            explained.update(out)
        else:
            continue
        yield Finding("error", (name,), what, SYMPTOM, fix, row)
    for (dialer, target), problem in broken.items():
        if (dialer, target) not in explained:
            what = f"{dialer} cannot connect to {target} ({problem}), although others can"
            fix = open_firewall(cluster, target, [dialer], "in")
            yield Finding("error", (dialer, target), what, SYMPTOM, fix, row=12)
    yield from _no_common_address(cluster, cluster.reach, {target for _, target in broken})


def _outcomes(reach: Reach) -> dict[Pair, list[str]]:
    """The problem at each address, by pair of hosts; empty for an address that worked."""
    outcomes: dict[Pair, list[str]] = {}
    for dialer, results in reach.tried.items():
        for result in results:
            outcomes.setdefault((dialer, result["host"]), []).append(result["problem"])
    return outcomes


def _no_common_address(cluster: Cluster, reach: Reach, broken: set[str]) -> Findings:
    """A rank gives the same address to all others, so one address must work for all."""
    problems: dict[str, dict[str, list[str]]] = {}
    for result in (result for results in reach.tried.values() for result in results):
        problems.setdefault(result["host"], {}).setdefault(result["address"], []).append(result["problem"])
    for name in (machine.name for machine in cluster.machines):
        found = problems.get(name, {})
        if name not in broken and found and all(map(any, found.values())):
            what = f"none of its addresses ({', '.join(found)}) is reachable from every other host"
            fix = Fix(say="connect the hosts to one network and choose its interface: `--interface NAME`")
            yield Finding("error", (name,), what, SYMPTOM, fix, row=5)


CHECK = Check(probe=host_network.firewall, judge=judge)

"""Every host reaches every other, on ports that the kernel chooses, in both directions.

Rows 5, 11 and 12 of the catalogue.
"""

from __future__ import annotations

from muster.agent.probes import host_network
from muster.check.cluster_facts import Cluster, Reach
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.check.fixes import open_firewall
from muster.text import names

SYMPTOM = "the start looks fine, then both sides: Gloo connectFullMesh failed, Connect timeout, after a minute"

Pair = tuple[str, str]
"""Who dialed, and whom."""


def judge(cluster: Cluster) -> Findings:
    """Find out whose fault it is: a host nobody reaches, one that reaches nobody, or a pair."""
    if cluster.reach is None or len(cluster.machines) < 2:
        return
    outcomes = _outcomes(cluster.reach)
    broken = {pair: problems[0] for pair, problems in outcomes.items() if all(problems)}
    told: set[Pair] = set()
    for name in (machine.name for machine in cluster.machines):
        into = [pair for pair in broken if pair[1] == name]
        out = [pair for pair in broken if pair[0] == name]
        dialers, targets = [pair[0] for pair in into], [pair[1] for pair in out]
        if into and len(into) == sum(pair[1] == name for pair in outcomes) and not told.issuperset(into):
            row, also = 11, "" if out else ", though it reaches them"
            what = f"{names(dialers)} cannot connect to it ({broken[into[0]]}){also}"
            fix = open_firewall(cluster, name, dialers, "in")
            told.update(into)
        elif out and len(out) == sum(pair[0] == name for pair in outcomes) and not told.issuperset(out):
            row, what = 12, f"it cannot connect to {names(targets)} ({broken[out[0]]})"
            fix = open_firewall(cluster, name, targets, "out")
            told.update(out)
        else:
            continue
        yield Finding("error", (name,), what, SYMPTOM, fix, row)
    for (dialer, target), problem in broken.items():
        if (dialer, target) not in told:
            what = f"{dialer} cannot connect to {target} ({problem}), though others can"
            fix = open_firewall(cluster, target, [dialer], "in")
            yield Finding("error", (dialer, target), what, SYMPTOM, fix, row=12)
    yield from _no_common_address(cluster, cluster.reach, {target for _, target in broken})


def _outcomes(reach: Reach) -> dict[Pair, list[str]]:
    """Who dialed whom, and what it met at each address; empty where it got through."""
    outcomes: dict[Pair, list[str]] = {}
    for dialer, results in reach.tried.items():
        for result in results:
            outcomes.setdefault((dialer, result["host"]), []).append(result["problem"])
    return outcomes


def _no_common_address(cluster: Cluster, reach: Reach, broken: set[str]) -> Findings:
    """A rank offers one address to all others, so one must do for all."""
    problems: dict[str, dict[str, list[str]]] = {}
    for result in (result for results in reach.tried.values() for result in results):
        problems.setdefault(result["host"], {}).setdefault(result["address"], []).append(result["problem"])
    for name in (machine.name for machine in cluster.machines):
        found = problems.get(name, {})
        if name not in broken and found and all(map(any, found.values())):
            what = f"none of its addresses ({', '.join(found)}) leads to it from every other host"
            fix = Fix(say="put the hosts on one network, and name it: `--interface NAME`")
            yield Finding("error", (name,), what, SYMPTOM, fix, row=5)


CHECK = Check(probe=host_network.firewall, judge=judge)

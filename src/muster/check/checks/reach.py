"""Every host reaches every other, on ports that the kernel chooses, in both directions.

Rows 5, 11 and 12 of the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Fix
from muster.check.fixes import open_firewall
from muster.text import names

SYMPTOM = "the start looks fine, then both sides: Gloo connectFullMesh failed, Connect timeout, after a minute"


def probe(ask: dict[str, Any]) -> dict[str, Any]:
    """Ask one host: which firewall it has, and for root which of its chains judge packets."""
    import os

    chains: dict[str, list[str]] = {"in": [], "out": []}
    try:
        with open("/etc/ufw/ufw.conf") as file:
            if "ENABLED=yes" in file.read():
                return {"tool": "ufw", "chains": chains}
    except OSError:
        pass
    if os.path.exists("/run/firewalld.pid"):
        return {"tool": "firewalld", "chains": chains}
    folders = [*os.environ.get("PATH", "").split(":"), "/usr/sbin", "/sbin"]
    nft = next((f"{folder}/nft" for folder in folders if os.access(f"{folder}/nft", os.X_OK)), None)
    if nft is None:
        return {"tool": "iptables", "chains": chains}
    if os.getuid() == 0:
        import subprocess

        done = subprocess.run(
            [nft, "list", "chains"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=2,
        )
        table = chain = ""
        for line in done.stdout.decode(errors="replace").splitlines():
            words = line.split()
            if words[:1] == ["table"]:
                table = f"{words[1]} {words[2]}"
            elif words[:1] == ["chain"]:
                chain = words[1]
            elif words[:2] == ["type", "filter"] and table.split()[0] in ("ip", "inet"):
                for hook, direction in (("input", "in"), ("output", "out")):
                    if words[3] == hook:
                        chains[direction].append(f"{table} {chain}")
    return {"tool": "nft", "chains": chains}


def judge(cluster: Cluster) -> Iterator[Finding]:
    """Find out whose fault it is: a host nobody reaches, one that reaches nobody, or a pair."""
    if cluster.reach is None or len(cluster.machines) < 2:
        return
    broken = _broken_pairs(cluster)
    told: set[tuple[str, str]] = set()
    for machine in cluster.machines:
        name = machine.name
        into = [pair for pair in broken if pair[1] == name]
        out = [pair for pair in broken if pair[0] == name]
        tried_into = _pairs(cluster, into=name)
        if into and len(into) == tried_into and not told.issuperset(into):
            row, also = 11, "" if out else ", though it reaches them"
            what = f"{names([dialler for dialler, _ in into])} cannot connect to it ({broken[into[0]]}){also}"
            fix = open_firewall(cluster, name, [dialler for dialler, _ in into], "in")
            told.update(into)
        elif out and len(out) == _pairs(cluster, out=name) and not told.issuperset(out):
            row, what = 12, f"it cannot connect to {names([target for _, target in out])} ({broken[out[0]]})"
            fix = open_firewall(cluster, name, [target for _, target in out], "out")
            told.update(out)
        else:
            continue
        yield Finding(severity="error", hosts=(name,), what=what, symptom=SYMPTOM, fix=fix, row=row)
    for pair, problem in broken.items():
        if pair not in told:
            what = f"{pair[0]} cannot connect to {pair[1]} ({problem}), though others can"
            fix = open_firewall(cluster, pair[1], [pair[0]], "in")
            yield Finding(severity="error", hosts=pair, what=what, symptom=SYMPTOM, fix=fix, row=12)
    yield from _no_common_address(cluster, {target for _, target in broken})


def _broken_pairs(cluster: Cluster) -> dict[tuple[str, str], str]:
    """Who reached no address of whom, and what it met at the first."""
    broken: dict[tuple[str, str], str] = {}
    assert cluster.reach is not None
    for dialler, results in cluster.reach.tried.items():
        for target in dict.fromkeys(result["host"] for result in results):
            problems = [result["problem"] for result in results if result["host"] == target]
            if all(problems):
                broken[dialler, target] = problems[0]
    return broken


def _pairs(cluster: Cluster, *, into: str = "", out: str = "") -> int:
    """How many tried to reach a host, or how many it tried to reach."""
    assert cluster.reach is not None
    tried = cluster.reach.tried
    if into:
        return sum(any(result["host"] == into for result in results) for results in tried.values())
    return len({result["host"] for result in tried.get(out, ())})


def _no_common_address(cluster: Cluster, broken: set[str]) -> Iterator[Finding]:
    """A rank offers one address to all others, so one must do for all."""
    assert cluster.reach is not None
    tried = cluster.reach.tried
    for machine in cluster.machines:
        results = [result for found in tried.values() for result in found if result["host"] == machine.name]
        by_address: dict[str, list[str]] = {}
        for result in results:
            by_address.setdefault(result["address"], []).append(result["problem"])
        if machine.name not in broken and by_address and all(any(problems) for problems in by_address.values()):
            yield Finding(
                severity="error",
                hosts=(machine.name,),
                what=f"none of its addresses ({', '.join(by_address)}) leads to it from every other host",
                symptom=SYMPTOM,
                fix=Fix(say="put the hosts on one network, and name it: `--interface NAME`"),
                row=5,
            )


CHECK = Check(probe=probe, judge=judge)

"""Every host reaches rank 0 at the address and port that the user chose.

Rows 1, 7, 8, 9 and 10 of the catalog. By default, `muster run` chooses both and tests them.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.agent.probes import host_network
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.check.fixes import open_firewall
from muster.shared.replies import DialResult

LOOPBACK = "Timed out waiting for clients: 1/2 clients joined; on the others: the client socket has timed out"
UNKNOWN = "The client socket has timed out while trying to connect (torch reports an unknown name as a timeout)"
TAKEN = "The server socket has failed to listen: EADDRINUSE, and on the others: Connection reset by peer"
STRANGER = "Ping failed, invalid value returned from server. Expected: 17729, Got: 1347703880"
CLOSED = "1/2 clients joined; on the others: the client socket has timed out"


def judge(cluster: Cluster) -> Findings:
    """Errors, because each of these makes the job fail."""
    wanted = cluster.wanted
    if cluster.reach is not None and cluster.reach.port_problem:
        owner = f" by {cluster.reach.port_owner}" if cluster.reach.port_owner else ""
        what = f"port {wanted.master_port} is already in use{owner}"
        fix = Fix(command=wanted.typed("--master-port"), say="Muster then picks a free port")
        yield Finding("error", (cluster.machines[0].name,), what, TAKEN, fix, row=8)
    if len(cluster.machines) < 2:
        return
    blamed: set[str] = set()
    if wanted.master_addr is not None:
        for finding in _address(cluster, wanted.master_addr):
            blamed.update(finding.hosts)
            yield finding
    yield from _port(cluster, blamed)


def _address(cluster: Cluster, master: str) -> Findings:
    """A loopback address makes each host connect to itself; a name may be unknown on some hosts."""
    stands = cluster.answers(host_network.master)
    good = cluster.address(cluster.machines[0].name)
    fix = Fix(command=cluster.wanted.typed("--master-addr"), say=f"Muster then picks the address: {good}")
    first, *others = cluster.machines
    itself = f"--master-addr {master} is the host itself, not {first.name}"
    if _loopback(stands.get(first.name)) or all(_loopback(stands.get(machine.name)) for machine in others):
        yield Finding("error", tuple(machine.name for machine in others), itself, LOOPBACK, fix, row=1)
        return
    families = {name: ":" in found[0] for name, found in stands.items() if found}
    for machine in cluster.machines:
        found = stands.get(machine.name)
        if found == []:
            what, row, symptom = f"cannot resolve --master-addr {master}", 7, UNKNOWN
        elif found and machine is not first and _loopback(found):
            what, row, symptom = itself, 1, LOOPBACK
        elif found and families[machine.name] != families.get(first.name, families[machine.name]):
            kinds = ("IPv6", "IPv4") if families[machine.name] else ("IPv4", "IPv6")
            what = f"--master-addr {master} resolves to {kinds[0]} ({found[0]}), but to {kinds[1]} on {first.name}"
            row, symptom = 13, "The IPv6 network addresses of (host) cannot be retrieved, or a hang"
        else:
            continue
        yield Finding("error", (machine.name,), what, symptom, fix, row)


def _port(cluster: Cluster, blamed: set[str]) -> Findings:
    """Check which program answers on the port that rank 0 will open."""
    reach, wanted = cluster.reach, cluster.wanted
    if reach is None or not reach.master:
        return
    first = cluster.machines[0].name
    problems = {host: _worst(results) for host, results in reach.master.items() if host not in blamed}
    failed = {host: problem for host, problem in problems.items() if problem}
    # Another server may wait for the client to speak first; the agent on rank 0's host would have sent its nonce.
    strangers = [host for host, problem in failed.items() if problem.startswith(("another", "connected"))]
    for host in strangers:
        what = f"another program answers on port {wanted.master_port} of {first}: a proxy or another job"
        fix = Fix(command=wanted.typed("--master-port"), say="Muster then picks a port that works")
        yield Finding("error", (host,), what, STRANGER, fix, row=9)
    closed = [host for host in failed if host not in strangers and _reaches(cluster, host, first)]
    if closed:
        culprit = (first,) if len(closed) == len(problems) - len(strangers) else tuple(closed)
        direction = "in" if culprit == (first,) else "out"
        what = f"{', '.join(closed)} cannot reach port {wanted.master_port} of {first} ({failed[closed[0]]})"
        fix = open_firewall(cluster, culprit[0], closed if direction == "in" else [first], direction)
        yield Finding("error", culprit, what, CLOSED, fix, row=10)


def _reaches(cluster: Cluster, host: str, target: str) -> bool:
    """Whether a host reaches the target on other ports; if not, the check `reach` reports it."""
    assert cluster.reach is not None
    return any(result["host"] == target and not result["problem"] for result in cluster.reach.tried.get(host, ()))


def _worst(results: Sequence[DialResult]) -> str:
    """The worst problem, or empty if any address worked, because one is enough."""
    problems = [result["problem"] for result in results]
    return "" if "" in problems else next((p for p in problems if "another" in p), problems[0] if problems else "")


def _loopback(addresses: list[str] | None) -> bool:
    return bool(addresses) and all(address.startswith("127.") or address == "::1" for address in addresses or ())


CHECK = Check(probe=host_network.master, judge=judge)

"""Looking up names and addresses takes no time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Fix

SYMPTOM = "a start that takes minutes; `The hostname of the client socket cannot be retrieved`, for each connection"

SLOW = 0.5
LIMIT = 3.0


def probe(ask: dict[str, Any]) -> dict[str, Any]:
    """Ask one host: its own name, and the names of its peers' addresses, which torch looks up for each connection."""
    import os
    import socket
    import time

    slowest, what = 0.0, ""
    name = os.uname().nodename
    addresses = [address for found in ask["peers"].values() for address in found][:8]

    def seconds(word: str) -> float:
        begin = time.monotonic()
        try:
            if word == name:
                socket.getaddrinfo(name, None)
            else:
                socket.getnameinfo((word, 0), 0)
        except OSError:
            pass
        return time.monotonic() - begin

    for word in [name, *addresses]:
        taken = seconds(word)
        if taken > 0.5:  # a busy host is held up once, and a slow resolver every time
            taken = min(taken, seconds(word))
        if taken > slowest:
            slowest, what = taken, word
        if slowest > 0.5:
            break
    return {"seconds": slowest, "what": what}


def judge(cluster: Cluster) -> Iterator[Finding]:
    """One that takes longer than the probe may is slow too."""
    for machine in cluster.machines:
        answer = machine.answers.get("names")
        if answer is not None and answer["seconds"] > SLOW:
            what = f"looking up {answer['what']} takes {answer['seconds']:.1f} s there"
        elif "names" in machine.hung:
            what = f"looking up names takes more than {LIMIT:.0f} s there"
        else:
            continue
        # row 14
        yield Finding(
            severity="warning",
            hosts=(machine.name,),
            what=what,
            symptom=SYMPTOM,
            fix=_fix(cluster, machine.name),
            row=14,
        )


def _fix(cluster: Cluster, host: str) -> Fix:
    lines: list[str] = []
    for machine in cluster.machines:
        address = cluster.address(machine.name)
        if address is not None:
            own = cluster.answer("own_name", machine.name).get("name") or machine.name
            lines.append(f"{address} {own}")
    if not lines:
        return Fix(say="repair its resolver (/etc/resolv.conf)")
    text = "\\n".join(lines)
    return Fix(
        command=f'printf "{text}\\n" | {cluster.sudo(host)}tee -a /etc/hosts',
        on=host,
        say="or repair its resolver: /etc/resolv.conf",
    )


CHECK = Check(probe=probe, judge=judge, limit=LIMIT)

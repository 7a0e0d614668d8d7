"""What kind of machine a host is: facts for the table and for other checks; nothing here can be wrong."""

from __future__ import annotations

from muster.agent.probes import operating_system
from muster.check.definition import Check
from muster.text import size_text


def table(answer: operating_system.System) -> dict[str, str]:
    """Facts for people."""
    return {
        "Python": answer["python"],
        "system": f"{answer['os']}, Linux {answer['kernel']}",
        "CPUs": str(answer["cpus"]),
        "memory": size_text(answer["memory"], 2),
    }


CHECK = Check(probe=operating_system.system, judge=lambda cluster: (), table=table)

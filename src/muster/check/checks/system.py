"""Basic facts about each host, for the report and for other checks; it reports no problems itself."""

from __future__ import annotations

from muster.agent.probes import operating_system
from muster.check.definition import Check
from muster.text import size_text


def table(answer: operating_system.System) -> dict[str, str]:
    """Facts for the report."""
    return {
        "Python": answer["python"],
        "system": ", ".join(filter(None, (answer["os"], f"Linux {answer['kernel']}"))),
        "CPUs": str(answer["cpus"]),
        "memory": size_text(answer["memory"], 2),
    }


CHECK = Check(probe=operating_system.system, judge=lambda cluster: (), table=table)

"""The firewall of this host."""

from __future__ import annotations

import os

from .reading import find_program, read, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..check_probes import Question


def firewall(ask: Question) -> dict[str, Any]:
    """Return which firewall this host has, and for root which of its chains judge packets."""
    chains: dict[str, list[str]] = {"in": [], "out": []}
    nft = find_program("nft", "/usr/sbin", "/sbin")
    if "ENABLED=yes" in read("/etc/ufw/ufw.conf"):
        tool = "ufw"
    elif os.path.exists("/run/firewalld.pid"):
        tool = "firewalld"
    else:
        tool = "nft" if nft else "iptables"
    if tool == "nft" and os.getuid() == 0:
        table = chain = ""
        for line in run(nft, "list", "chains", timeout=2)[1].splitlines():
            words = line.split()
            if words[:1] == ["table"]:
                table = f"{words[1]} {words[2]}"
            elif words[:1] == ["chain"]:
                chain = words[1]
            elif words[:2] == ["type", "filter"] and table.startswith(("ip ", "inet ")):
                for hook, direction in (("input", "in"), ("output", "out")):
                    if words[3] == hook:
                        chains[direction].append(f"{table} {chain}")
    return {"tool": tool, "chains": chains}

"""Requests between programs and moms, one JSON line each way over TCP, and what the whole site has in common."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

SITE: dict[str, Any] = json.loads(Path(__file__).with_name("site.json").read_text())
TORQUE = SITE["flavour"] == "torque"
HOME = Path("/var/spool/torque" if TORQUE else "/var/spool/pbs")
"""PBS_HOME: spool, nodefiles and scripts, on each host's own disk."""
PORT = 15003
"""PBS_MOMPORT."""


def dial(host: str, limit: float = 5, /, **request: Any) -> socket.socket:
    """Send a request to the mom of a host; the connection has no time limit once it is made."""
    connection = socket.create_connection((SITE["hosts"][host]["address"], PORT), timeout=limit)
    connection.sendall(json.dumps(request).encode() + b"\n")
    connection.settimeout(None)
    return connection


def call(host: str, limit: float = 5, /, **request: Any) -> dict[str, Any]:
    """Ask the mom of a host and return its answer; no answer in time is an OSError."""
    with dial(host, limit, **request) as connection:
        connection.settimeout(limit)
        line = connection.makefile("rb").readline()
    if not line:
        raise ConnectionError(f"{host} hung up")
    return json.loads(line)

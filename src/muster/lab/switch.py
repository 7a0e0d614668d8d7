"""Starts the process that every lab begins and ends with: the switch, which is also the janitor."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from muster.lab.node import Node
from muster.lab.programs import SYSTEM_PATH, find

SCRIPT = Path(__file__).with_name("switch.sh")


def start_switch(prefix: Sequence[str], *, address: str) -> tuple[Node, Path]:
    """Start the switch behind the command `prefix`; return it with the folder it has made for the lab.

    Without an `address` there is no bridge, and the process only cleans up.
    """
    env = {"PATH": SYSTEM_PATH, "ADDRESS": address, "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
    switch = Node("the switch", [*prefix, find("bash"), "-c", SCRIPT.read_text()], env=env, errors=None)
    try:
        return switch, Path(switch.expect("ready", time.monotonic() + 20)[0])
    except BaseException:
        switch.end()
        raise

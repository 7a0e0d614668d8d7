"""Starts the process that every lab begins and ends with: the switch, which is also the janitor."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from muster.lab.node import Node
from muster.lab.system_programs import SYSTEM_PATH, find

SCRIPT = Path(__file__).with_name("switch.sh")


def script_argv(title: str) -> list[str]:
    """The command line of bash for the script in the environment variable SCRIPT, as short as `ps` should show it."""
    return [find("bash"), "-c", 'eval "$SCRIPT"', title]


def start_switch(prefix: Sequence[str], *, address: str) -> tuple[Node, Path]:
    """Start the switch behind the command `prefix`; return it with the folder it has made for the lab.

    Without an `address` there is no bridge, and the process only cleans up.
    """
    env = {"PATH": SYSTEM_PATH, "ADDRESS": address, "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
    env["SCRIPT"] = SCRIPT.read_text()
    switch = Node("the switch", [*prefix, *script_argv("muster lab switch")], env=env, errors=None)
    try:
        return switch, Path(switch.expect("ready", time.monotonic() + 20)[0])
    except BaseException:
        switch.end()
        raise

"""A long run without a hang, in which one rank after the other computes for a minute while the others wait."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.commands import BIN, environment

PAUSES = Path(__file__).with_name("pauses.py")
AFTER = 5
"""Seconds of --hang-after, six times as strict as the default."""


def soak(minutes: float) -> int:
    """Run it and print the number of false reports; the exit code is 1 if there were any."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        argv = [BIN / "muster", "run", "--no-check", "--nproc", "2", "--hang-after", str(AFTER)]
        done = subprocess.run(
            [*argv, PAUSES, str(minutes * 60)],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=minutes * 60 + 300,
            check=False,
        )
    reports = re.findall(r"^muster: hang: .*", done.stderr, re.MULTILINE)
    pauses = re.findall(r"PAUSE (.*)", done.stdout)
    print("\n".join([*pauses, *reports]))
    print(
        f"{minutes:g} minutes with --hang-after {AFTER}: {len(pauses)} pauses on a rank that computes, "
        f"{len(reports)} false reports, exit code {done.returncode}"
    )
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
    return int(bool(reports) or done.returncode != 0 or not pauses)

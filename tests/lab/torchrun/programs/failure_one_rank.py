# exit: 9
# stderr: not compared: of rank 0, which the launcher stops
"""Rank 1 fails while rank 0 works: rank 0 gets SIGTERM and can still save what it has."""

import os
import signal
import sys
import time
from pathlib import Path

rank, out = os.environ["RANK"], Path(os.environ["OUT"])


def save(number, frame):
    (out / "saved").write_text(f"by rank {rank} on {signal.Signals(number).name}")
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
(out / f"rank-{rank}").write_text("started")
while rank == "0":
    time.sleep(0.1)
while not (out / "rank-0").exists():
    time.sleep(0.02)
sys.exit(9)

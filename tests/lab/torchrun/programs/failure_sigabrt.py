# exit: 134
# stderr: not compared: Muster enables faulthandler, which shows the Python line of a crash
"""Rank 1 ends by SIGABRT while rank 0 waits."""

import os
import time
from pathlib import Path

rank, out = os.environ["RANK"], Path(os.environ["OUT"])
(out / f"rank-{rank}").write_text("started")
print("started", flush=True)
while rank == "0":
    time.sleep(0.1)
while not (out / "rank-0").exists():
    time.sleep(0.02)
os.abort()

# exit: 137
# stderr: not compared: of the other rank, which the launcher stops
"""Rank 1 ends by SIGKILL while rank 0 waits."""

import os
import signal
import time
from pathlib import Path

rank, out = os.environ["RANK"], Path(os.environ["OUT"])
(out / f"rank-{rank}").write_text("started")
print("started", flush=True)
while rank == "0":
    time.sleep(0.1)
while not (out / "rank-0").exists():
    time.sleep(0.02)
os.kill(os.getpid(), signal.SIGKILL)

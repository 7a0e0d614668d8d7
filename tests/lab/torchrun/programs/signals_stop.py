# signal: SIGTERM
# stderr: not compared: the launcher is stopped by us
"""When the launcher gets SIGTERM, each rank does, and can save what it has."""

import os
import signal
import sys
import time
from pathlib import Path

rank, out = os.environ["RANK"], Path(os.environ["OUT"])


def save(number, frame):
    (out / f"saved-{rank}").write_text(signal.Signals(number).name)
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
(out / f"ready-{rank}").touch()
time.sleep(40)

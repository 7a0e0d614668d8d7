# row: 8
# signal: SIGINT
# stderr: not compared: the launcher is stopped by us
"""On Ctrl-C each rank gets a KeyboardInterrupt, and can save what it has."""

import os
import time
from pathlib import Path

rank, out = os.environ["RANK"], Path(os.environ["OUT"])
try:
    (out / f"ready-{rank}").touch()
    time.sleep(40)
except KeyboardInterrupt:
    (out / f"saved-{rank}").write_text("on KeyboardInterrupt")
    print("saved", flush=True)

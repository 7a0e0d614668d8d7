"""Rank 0 serves a store of its own on a free port; counting, waiting, comparing and deleting work."""

import os
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import DistStoreError, TCPStore

rank, out = int(os.environ["RANK"]), Path(os.environ["OUT"])
if rank == 0:
    store = TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=20), wait_for_workers=False)
    (out / "ready-new").write_text(str(store.port))
    (out / "ready-new").rename(out / "ready-port")
else:
    while not (out / "ready-port").exists():
        time.sleep(0.02)
    store = TCPStore("127.0.0.1", int((out / "ready-port").read_text()), 2, False, timedelta(seconds=20))
store.add("arrived", 1)
while store.add("arrived", 0) < 2:
    time.sleep(0.02)
store.set(f"key-{rank}", "x")
print(store.get(f"key-{1 - rank}"), store.compare_set(f"own-{rank}", "", "new"), store.delete_key(f"own-{rank}"))
try:
    store.wait(["never"], timedelta(milliseconds=100))
except DistStoreError:
    print("timeout")
store.add("done", 1)
while rank == 0 and store.add("done", 0) < 2:
    time.sleep(0.02)

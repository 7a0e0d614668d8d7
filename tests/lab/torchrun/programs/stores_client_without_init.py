# row: 3
"""Ranks use the launcher's store and no process group at all."""

import os
from datetime import timedelta

from torch.distributed import TCPStore

rank = os.environ["RANK"]
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = TCPStore(*address, is_master=False, timeout=timedelta(seconds=20))
store.set(f"hello-{rank}", f"from {rank}")
print([store.get(f"hello-{other}") for other in range(2)])
print(store.add("count", 1) in (1, 2))

"""Ranks meet in a FileStore."""

import os

from torch.distributed import FileStore

rank = int(os.environ["RANK"])
store = FileStore(os.path.join(os.environ["OUT"], "ready-store"), 2)
store.set(f"key-{rank}", f"value {rank}")
print([store.get(f"key-{other}") for other in range(2)])

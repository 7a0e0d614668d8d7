"""A key that nobody sets: the launcher's store says so after the timeout."""

import os
from datetime import timedelta

from torch.distributed import DistStoreError, TCPStore

address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = TCPStore(*address, is_master=False, timeout=timedelta(seconds=20))
try:
    store.wait(["never"], timedelta(milliseconds=200))
except DistStoreError as error:
    print("timeout" in str(error))
print(store.check(["never"]))

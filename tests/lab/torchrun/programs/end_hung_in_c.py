# row: 5
# torchrun: not run: it has no hang detection and would wait forever
# muster: --hang-after 3 --on-hang kill
# exit: 124
"""Rank 1 hangs in C code that holds the GIL while its interpreter shuts down."""

import ctypes
import os

import torch.distributed as dist


class Hanging:
    pause = ctypes.PyDLL(None).pause

    def __del__(self):
        self.pause()


dist.init_process_group("gloo")
dist.barrier()
if os.environ["RANK"] == "1":
    keep = Hanging()

# ranks: 1
# row: 14
# env: OMP_PROC_BIND=true
# env: OMP_NUM_THREADS=2
"""OMP_PROC_BIND binds threads, and takes none of them away."""

import os

import torch

torch.ones(100_000).sum()
print(torch.get_num_threads(), len(os.sched_getaffinity(0)) > 0)

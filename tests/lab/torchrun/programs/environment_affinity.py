# ranks: 1
# row: 14
# env: GOMP_CPU_AFFINITY=0 1
# env: OMP_NUM_THREADS=2
"""GOMP_CPU_AFFINITY places threads, and takes none of them away."""

import torch

torch.ones(100_000).sum()
print(torch.get_num_threads())

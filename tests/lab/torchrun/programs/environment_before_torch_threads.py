# ranks: 1
# row: 12
"""OMP_NUM_THREADS, set by the script before it imports torch, decides the number of threads."""

import os

os.environ["OMP_NUM_THREADS"] = "3"

import torch

print(torch.get_num_threads(), torch.get_num_interop_threads() > 0)

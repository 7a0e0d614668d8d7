# ranks: 1
# row: 12
"""MKL_NUM_THREADS, set by the script before it imports torch, decides the threads of MKL and OpenMP."""

import os

os.environ["MKL_NUM_THREADS"] = "2"
os.environ["OMP_NUM_THREADS"] = "3"

import torch

print(torch.__config__.parallel_info().count("OMP_NUM_THREADS : 3"))
print([line for line in torch.__config__.parallel_info().splitlines() if "NUM_THREADS" in line or "get_max" in line])

# slow: the compiler takes 17 s of CPU time
# row: 9
# needs: g++
# ranks: 1
# env: TORCHINDUCTOR_COMPILE_THREADS=1
"""torch.compile with inductor, which runs a C++ compiler."""

import os

os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath("cache")

import torch


@torch.compile
def function(x):
    return torch.sin(x).cos().sum()


print(f"{function(torch.arange(64.0)).item():.5f}")

# row: 9
# ranks: 1
# env: TORCHINDUCTOR_COMPILE_THREADS=1
"""torch.compile with inductor, for a function that needs no C++ compiler."""

import os

os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath("cache")

import torch


@torch.compile
def function(x, y):
    return x @ y


print(function(torch.ones(4, 4), torch.eye(4)).sum().item())

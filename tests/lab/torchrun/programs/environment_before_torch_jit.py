# ranks: 1
# row: 12
"""PYTORCH_JIT, set by the script before it imports torch, decides that torch.jit compiles nothing."""

import os

os.environ["PYTORCH_JIT"] = "0"

import torch


def double(x):
    return 2 * x


print(type(torch.jit.script(double)).__name__)

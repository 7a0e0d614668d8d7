# ranks: 1
# row: 12
"""ATEN_CPU_CAPABILITY, set by the script before it imports torch, decides which instructions of the CPU torch uses."""

import os

os.environ["ATEN_CPU_CAPABILITY"] = "default"

import torch

print(torch.backends.cpu.get_cpu_capability())

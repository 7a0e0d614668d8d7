# ranks: 1
"""One thread at the start where a rank has the machine for itself, and as many as torch needs after it computes."""

import os

print(len(os.listdir("/proc/self/task")))

import torch

print(len(os.listdir("/proc/self/task")), torch.get_num_threads())

# row: 13
"""Imports a library that must come before torch, as some that patch the allocator or the loader must."""

import early
import torch

print(early.WORD, torch.ones(2).sum().item())

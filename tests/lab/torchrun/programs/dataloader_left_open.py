"""A DataLoader with persistent workers, whose iterator is in use when the script ends."""

import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.arange(100.0)), batch_size=2, num_workers=2, persistent_workers=True)
iterator = iter(loader)
print(next(iterator))
print("script done")

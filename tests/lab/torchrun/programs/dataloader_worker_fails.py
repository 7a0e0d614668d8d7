# exit: 1
# ranks: 1
# stderr: not compared: the traceback has lines of torch and the worker's
"""An exception in a DataLoader's worker ends the script with its traceback."""

import torch
from torch.utils.data import DataLoader, Dataset


class Broken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 3:
            raise ValueError("sample 3 is broken")
        return torch.tensor(index)


for batch in DataLoader(Broken(), num_workers=1):
    print(batch)

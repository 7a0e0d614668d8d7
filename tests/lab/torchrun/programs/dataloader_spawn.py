# ranks: 1
"""A DataLoader with two workers by spawn."""

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(index), torch.utils.data.get_worker_info().id, torch.get_num_threads()


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2, shuffle=True, multiprocessing_context="spawn")
    print([[part.tolist() for part in batch] for batch in loader])

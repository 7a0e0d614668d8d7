# ranks: 1
"""torch.save and torch.load, with a class of the script's own."""

import os

import torch


class Config:
    rate = 0.1


path = f"{os.environ['OUT']}/rank-{os.environ['RANK']}.pt"
config = Config()
config.rate = 0.5
torch.save({"weight": torch.arange(3.0), "config": config}, path)
found = torch.load(path, weights_only=False)
print(found["weight"].tolist(), found["config"].rate, type(found["config"]).__module__)

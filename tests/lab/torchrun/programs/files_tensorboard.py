# needs: tensorboard
"""A SummaryWriter that the script leaves open has written its events."""

import os

from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter(f"log-{os.environ['RANK']}")
for step in range(5):
    writer.add_scalar("loss", 1 / (step + 1), step)

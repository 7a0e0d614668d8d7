"""A rank of the deep check: its place in the job, and its connection to the other ranks."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed

dist: Any = torch.distributed
"""Untyped, because torch annotates it only partially."""

PATIENCE = timedelta(seconds=120)


class World:
    """This rank's place in the job, from the environment variables that every launcher sets."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self.local = int(os.environ["LOCAL_RANK"])
        self.host = int(os.environ["GROUP_RANK"])
        self.hosts = int(os.environ["GROUP_WORLD_SIZE"])
        self.master = os.environ["MASTER_ADDR"]
        self.port = int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore(self.master, self.port, self.size, False, timeout=PATIENCE)

    def together(self, what: str, members: int) -> None:
        """Wait until all members have reached this point."""
        if self.store.add(f"{what}/count", 1) == members:
            self.store.set(f"{what}/go", "1")
        self.store.wait([f"{what}/go"], PATIENCE)

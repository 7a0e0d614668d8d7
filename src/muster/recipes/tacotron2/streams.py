"""Streams of a GPU beside the main one, so that independent work runs concurrently."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch


class Side:
    """Another stream of a GPU for work that can run concurrently; on a CPU everything is sequential."""

    def __init__(self, device: torch.device, number: int = 0) -> None:
        self._main: Any = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._side: Any = side_stream(device, number) if device.type == "cuda" else None

    def stream(self) -> AbstractContextManager[Any]:
        """Run what is started inside concurrently with the main stream."""
        return torch.cuda.stream(self._side) if self._side else nullcontext()

    def after_main(self) -> AbstractContextManager[Any]:
        """The same, after all work that is already in the main stream."""
        self.start()
        return self.stream()

    def start(self) -> None:
        """Let the side stream wait for the main stream."""
        if self._side:
            self._side.wait_stream(self._main)

    def main_waits(self) -> None:
        """Let the main stream wait for the side stream."""
        if self._side:
            self._main.wait_stream(self._side)

    join = main_waits


@cache
def side_stream(device: torch.device, number: int) -> Any:
    """One stream per GPU and number, created once."""
    return torch.cuda.Stream(device)

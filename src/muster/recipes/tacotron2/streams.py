"""Two streams of a GPU: what does not depend on each other runs at the same time."""

# torch is typed in part only.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch


class Side:
    """A second stream of a GPU for what can run beside the main one; on a CPU everything is in line."""

    def __init__(self, device: torch.device) -> None:
        self._main: Any = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._side: Any = side_stream(device) if device.type == "cuda" else None

    def stream(self) -> AbstractContextManager[Any]:
        """What is started inside runs beside the main stream."""
        return torch.cuda.stream(self._side) if self._side else nullcontext()

    def after_main(self) -> AbstractContextManager[Any]:
        """The same, after everything that the main stream has been given so far."""
        self.start()
        return self.stream()

    def start(self) -> None:
        """Let the side wait for the main stream."""
        if self._side:
            self._side.wait_stream(self._main)

    def main_waits(self) -> None:
        """Let the main stream wait for the side."""
        if self._side:
            self._main.wait_stream(self._side)

    join = main_waits


@cache
def side_stream(device: torch.device) -> Any:
    """One stream for each GPU, made once."""
    return torch.cuda.Stream(device)

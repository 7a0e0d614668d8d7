"""Counts the optimizer steps of a rank that never meets the others, so that its user can be warned."""

from __future__ import annotations

import sys

from . import torch_adapter
from .torch_groups import OnImport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .torch_groups import Hooks

_OTHER_WAYS = ("byteps", "horovod", "jax", "mpi4py", "ray", "torch_xla")
"""Packages with which ranks may communicate without torch.distributed."""


class LoneSteps:
    """Counts until a process group is created; a script that has one is sampled instead."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._steps = [0]
        self._end = lambda: None

    def install(self) -> None:
        """Begin to count now, or when torch is imported."""
        if torch_adapter.OPTIMIZER in sys.modules:
            self._begin()
        else:
            sys.meta_path.insert(0, OnImport(torch_adapter.OPTIMIZER, lambda module: self._begin()))  # type: ignore[arg-type]

    def _begin(self) -> None:
        if not self._hooks.has_met:
            self._end = torch_adapter.count_all_steps(self._steps)

    def end(self) -> None:
        """The script creates a process group."""
        self._end()

    def count(self) -> int:
        """The optimizer steps of a rank that had no way to communicate with others; else 0."""
        is_alone = not self._hooks.has_met and not any(package in sys.modules for package in _OTHER_WAYS)
        return self._steps[0] if is_alone else 0

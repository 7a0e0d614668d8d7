"""The training step with custom kernels; everything that it does not replace is that of the plain one."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import Tensor

import muster

from ..step import TrainingStep
from .gradients import FusedGradients, FusedLoss


class FusedStep(TrainingStep):
    """A step whose loss and gradients come from the fused network."""

    def connect(self, world: muster.World) -> None:
        """Build the fused network, which averages gradients itself: a CUDA graph rules out DDP."""
        self._gradients = FusedGradients(self.loss, world, self.options)

    def gradients(self, images: Tensor, labels: Tensor, weight: float) -> Tensor:
        """Store the gradients, averaged over the ranks, in the model; return the weighted loss of this rank."""
        return self._gradients(images, labels, weight)

    def warm_up(self, images: Tensor, labels: Tensor) -> None:
        """Do nothing: without DDP, every step is like the first."""

    def trial(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss function of this step on a local copy of the model, independent of other ranks."""
        return FusedLoss(copy.deepcopy(self.loss), self.options)

"""The learning rate as a function of the run's progress, so that a run can resume with any number of ranks."""

from __future__ import annotations

import math


def learning_rate(schedule: str, progress: float, *, epochs: int, warmup: float) -> float:
    """Return the rate at `progress` epochs as a fraction of the peak rate: a linear warmup, then the schedule.

    The warmup takes at most a fifth of the run. `step` divides the rate by 10 after each third, as in 2015.
    """
    warmup = min(warmup, epochs / 5)
    if progress < warmup:
        return progress / warmup
    done = min(1.0, (progress - warmup) / (epochs - warmup))
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if schedule == "linear":
        return 1 - done
    if schedule == "step":
        return 0.1 ** int(3 * min(progress / epochs, 0.999))
    return 1.0

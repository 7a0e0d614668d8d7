"""Allocations: which hosts a scheduler gave this job, read from what it left in the environment. Pure."""

from __future__ import annotations

from muster.allocations.allocation import Allocation

__all__ = ["Allocation"]

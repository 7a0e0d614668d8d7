"""Engines: which one places the processes, and all it needs to know, found out on this machine."""

from __future__ import annotations

from muster.engines.build import Means, build
from muster.engines.choice import Choice, Wish, choose
from muster.engines.pbs import read_pbs_here

__all__ = ["Choice", "Means", "Wish", "build", "choose", "read_pbs_here"]

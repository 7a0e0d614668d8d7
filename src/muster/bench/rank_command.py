"""The command lines of the ranks; their code is sent to the hosts, which need torch but not Muster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from muster.bench.collect import MARKER

MODULE = "muster_bench"
"""The module that `python -m` runs on the hosts."""


def collectives(
    *, backend: str, operations: Sequence[str], sizes: Sequence[int], pairs: bool, call_limit: float | None
) -> list[str]:
    """The command that measures; calls that would take more than `call_limit` seconds are skipped."""
    return _command(
        what="collectives",
        marker=MARKER,
        backend=backend,
        operations=list(operations),
        sizes=list(sizes),
        pairs=pairs,
        call_limit=call_limit,
    )


def training_step(*, backend: str, batch_size: int) -> list[str]:
    """The command that trains a small network and prints its throughput."""
    return _command(what="step", backend=backend, batch_size=batch_size)


def _command(**settings: Any) -> list[str]:
    return [MODULE, json.dumps(settings)]

"""The run that starts the ranks of the deep check, and their results."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.check.deep import ranks
from muster.controller.rank_package import pack
from muster.spec import RunSpec

MODULE = "muster_check"
"""The module that `python -m` runs on the hosts."""

MARK = "muster-check: "
"""Prefix of each rank's result in its log."""


@contextmanager
def deep_spec(spec: RunSpec) -> Generator[RunSpec]:
    """A run that measures, with the job's number of ranks or one per GPU; its code exists only inside the block."""
    with tempfile.TemporaryDirectory(prefix="muster-check-") as code:
        pack(ranks, Path(code), MODULE)
        yield replace(
            spec,
            target=MODULE,
            kind="module",
            args=(MARK,),
            cwd=code,
            sync=True,
            grace=2.0,
            only_ranks=frozenset(),
        )


def read_results(folder: Path) -> list[Any]:
    """The result of each rank, a JSON object on one line of its log."""
    results: list[Any] = []
    for path in sorted(folder.glob("attempt-0/rank-*.log")):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith(MARK):
                results.append(json.loads(line[len(MARK) :]))
    return sorted(results, key=lambda result: result["rank"])

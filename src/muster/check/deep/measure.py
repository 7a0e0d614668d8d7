"""The ranks of the deep check: the run that starts them, and what they wrote."""

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
"""What `python -m` runs on the hosts."""

MARK = "muster-check: "
"""Stands before the result of each rank in its log."""


@contextmanager
def deep_spec(spec: RunSpec) -> Generator[RunSpec]:
    """A run with a rank for every GPU, or as many as the job would have, that measures; its code lives in the block."""
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
    """The line of each rank, from its log: a JSON object."""
    results: list[Any] = []
    for path in sorted(folder.glob("attempt-0/rank-*.log")):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith(MARK):
                results.append(json.loads(line[len(MARK) :]))
    return sorted(results, key=lambda result: result["rank"])

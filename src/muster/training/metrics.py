"""Metrics of a run, written as JSON lines and, if installed, to TensorBoard."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from muster.errors import UsageError

FILE = "metrics.jsonl"

Row = dict[str, float]
"""The metrics of one step by name, including `step`."""


class Metrics:
    """A directory with a file of JSON lines; a resumed run appends to the same file."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = (self._folder / FILE).open("a", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write metrics to {self._folder}: {error.strerror}") from None
        self._status: Any = _tensorboard(self._folder)

    def write(self, row: Row) -> None:
        """Write one line and flush it, so that readers of the file see it immediately."""
        self._file.write(json.dumps({"time": round(time.time(), 3), **row}) + "\n")
        self._file.flush()
        if self._status is not None:
            for name, value in row.items():
                if name != "step":
                    self._status.add_scalar(name, value, row["step"])

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._status is not None:
            self._status.close()


def read_rows(folder: str | Path) -> list[Row]:
    """Return the rows in a directory by step; if a resumed run repeated a step, its row wins."""
    by_step: dict[float, Row] = {}
    for line in (Path(folder) / FILE).read_text(encoding="utf-8").splitlines():
        try:
            row: Row = json.loads(line)
        except ValueError:
            continue  # the run was killed while it wrote this line
        by_step[row["step"]] = {**by_step.get(row["step"], {}), **row}
    return [by_step[step] for step in sorted(by_step)]


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))  # pyright: ignore[reportUnknownVariableType]

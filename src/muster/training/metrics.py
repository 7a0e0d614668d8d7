"""Where the numbers of a run go besides the screen: JSON lines, and TensorBoard where it is installed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from muster.errors import UsageError

FILE = "metrics.jsonl"

Row = dict[str, float]
"""The numbers of one moment by name, `step` among them."""


class Metrics:
    """A folder with one line of JSON for each moment of a run; a run that is resumed goes on in the same file."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = (self._folder / FILE).open("a", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"metrics cannot be written to {self._folder}: {error.strerror}") from None
        self._status: Any = _tensorboard(self._folder)

    def write(self, row: Row) -> None:
        """Write one line, so that whoever reads the file sees it at once."""
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
    """Return what runs wrote into a folder by step; where a resumed run did a step again, its line counts."""
    by_step: dict[float, Row] = {}
    for line in (Path(folder) / FILE).read_text(encoding="utf-8").splitlines():
        try:
            row: Row = json.loads(line)
        except ValueError:
            continue  # a run that was killed in the middle of a line
        by_step[row["step"]] = {**by_step.get(row["step"], {}), **row}
    return [by_step[step] for step in sorted(by_step)]


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))  # pyright: ignore[reportUnknownVariableType]

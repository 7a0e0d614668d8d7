"""What every experiment has: rows, a folder, and one round that measures Muster and its peer, one after the other."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

from benchmarks.table import Row, Sample


class Missing(Exception):
    """This machine lacks something the experiment needs."""


class Failed(Exception):
    """A command that was measured did not do what it should."""


class Experiment(ABC):
    """Measures one or more rows; a context manager, so that what it needs is made once and always removed."""

    rows: tuple[Row, ...]
    repeats: int = 1
    """Rounds for each round asked for: short commands scatter more and cost less."""

    def __init__(self) -> None:
        self.not_measured: dict[str, str] = {}
        """Rows that this machine has no tool for, while it has all that the others need: why, by name."""

    def __enter__(self) -> Experiment:
        self.stack = ExitStack()
        self.folder = Path(mkdtemp(prefix="muster-bench-"))
        self.stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            self.open()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    @abstractmethod
    def open(self) -> None:
        """Make what all rounds share, onto `self.stack`; raises Missing where that cannot be had."""

    @abstractmethod
    def round(self) -> Mapping[str, Sample]:
        """Measure once: for the name of each row that can be measured, a sample."""

    def new_folder(self, name: str) -> Path:
        """A folder for one run."""
        return Path(mkdtemp(prefix=f"{name}-", dir=self.folder))

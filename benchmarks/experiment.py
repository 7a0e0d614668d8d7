"""The base of all experiments: rows, a directory, and a round that measures Muster and then its peer."""

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
    """A measured command did not work as expected."""


class Experiment(ABC):
    """Measures one or more rows; a context manager, so that what it needs is created once and always removed."""

    rows: tuple[Row, ...]
    repeats: int = 1
    """Repetitions per round; short commands vary more and cost less."""

    def __init__(self) -> None:
        self.not_measured: dict[str, str] = {}
        """Rows that cannot be measured on this machine, with the reason."""

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
        """Create what all rounds share, on `self.stack`; raise Missing if that is impossible."""

    @abstractmethod
    def round(self) -> Mapping[str, Sample]:
        """Measure once: a sample for each row that can be measured, by name."""

    def new_folder(self, name: str) -> Path:
        """A directory for one run."""
        return Path(mkdtemp(prefix=f"{name}-", dir=self.folder))

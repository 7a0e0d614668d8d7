"""What mutated lines have done: how many there were, and which exceptions nobody caught."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Tally:
    """Counts of one run."""

    lines: int = 0
    lost: int = 0
    """How many lines cost a host its link, or were refused."""
    uncaught: Counter[str] = field(default_factory=Counter[str])
    """Uncaught exceptions and other violations, by where they happened."""
    examples: dict[str, str] = field(default_factory=dict[str, str])

    @contextmanager
    def counted(self, what: str) -> Generator[None]:
        """Count an exception of this code."""
        try:
            yield
        except Exception as error:
            self._add(what, error)

    def on_exception(self, context: dict[str, Any]) -> None:
        """Count an exception in a task or callback of the event loop."""
        error = context.get("exception")
        if isinstance(error, Exception):
            self._add("the event loop", error)

    def _add(self, what: str, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [frame for frame in frames if "/muster/" in frame.filename] or frames
        where = f"{Path(inside[-1].filename).name}:{inside[-1].lineno}" if inside else "?"
        self.note(f"{what}: {type(error).__name__} at {where}", "".join(traceback.format_exception(error)))

    def note(self, what: str, example: object) -> None:
        """Count a violation."""
        self.uncaught[what] += 1
        self.examples.setdefault(what, str(example)[:3000])

    def check_files(self, root: Path, folder: Path) -> None:
        """Count files that were written outside of the job's directory."""
        strange = [path for path in root.iterdir() if not path.name.isdecimal()]
        strange += [path for path in folder.glob("attempt-*/*") if not path.name.startswith(("rank-", "order"))]
        for path in strange:
            self.note(f"a file was written: {path.name[:80]}", path)
            path.unlink() if path.is_file() else path.rename(folder / f"strange-{self.lines}")

"""The screen of a benchmark: it removes rank 0's measurements from the output and shows everything else."""

from __future__ import annotations

from collections.abc import Callable

from muster.output.lines import Line
from muster.output.screen import Screen

Hear = Callable[["ListeningScreen", int, str], bool]
"""Gets a rank and a line of its stdout, and returns whether it consumed the line."""


class ListeningScreen(Screen):
    """Shows every line of a rank's stdout that `hear` does not consume."""

    def __init__(self, hear: Hear, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._hear = hear

    def rank_line(self, host: str, rank: int, width: int, stream: int, line: Line) -> None:
        """Show a line of a rank."""
        if stream != 1 or not self._hear(self, rank, line.text):
            super().rank_line(host, rank, width, stream, line)

    def print(self, text: str) -> None:
        """Print a line of the benchmark itself to stdout."""
        self._show(1, [(text, "")], "\n")

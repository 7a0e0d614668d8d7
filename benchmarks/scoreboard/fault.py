"""A fault of the catalogue: how it is made, and whose name must be in the finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.scoreboard.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way in which hosts can be broken."""

    row: int
    """Of the catalogue."""
    title: str
    at: tuple[str, ...]
    """The hosts at fault; a finding about any other is wrong."""
    inject: Callable[[Stage], object] = lambda stage: None
    options: tuple[str, ...] = ()
    """Of `muster check`."""
    script: tuple[str, ...] = ()
    """The script to be checked, with its arguments."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the shell in which it is typed."""
    gpus: int = 0
    deep: bool = False
    answers: tuple[tuple[str, str], ...] = ()
    """What the printed fix asks, and what a person answers."""
    not_run: str = ""
    """Why the printed command is not run here."""

    @property
    def name(self) -> str:
        """`3 hostname is 127.0.1.1`."""
        return f"{self.row} {self.title}"

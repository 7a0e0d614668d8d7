"""A fault of the catalog: how to inject it, and which hosts the finding must name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.scoreboard.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of hosts."""

    row: int
    """Its row in the catalog."""
    title: str
    at: tuple[str, ...]
    """The hosts at fault; a finding about any other is wrong."""
    inject: Callable[[Stage], object] = lambda stage: None
    options: tuple[str, ...] = ()
    """Options of `muster check`."""
    script: tuple[str, ...] = ()
    """The script to check, with its arguments."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables of the shell."""
    gpus: int = 0
    deep: bool = False
    answers: tuple[tuple[str, str], ...] = ()
    """Prompts of the printed fix, with the answers."""
    not_run: str = ""
    """Why the printed command is not run."""

    @property
    def name(self) -> str:
        """`3 hostname is 127.0.1.1`."""
        return f"{self.row} {self.title}"

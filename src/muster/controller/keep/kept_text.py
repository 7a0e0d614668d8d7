"""Kept hosts as rows of a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muster.controller.keep.keep_client import KeptHost
from muster.text import age, printable, size_text, tilde

TITLES = ("KEPT HOST", "STATE", "MEMORY", "AGE", "ENDS IN", "PYTHON")


def kept_rows(hosts: Sequence[KeptHost], now: float) -> list[tuple[str, ...]]:
    """The titles, and a row per host."""
    return [TITLES, *(_row(host, now) for host in hosts)]


def _row(host: KeptHost, now: float) -> tuple[str, ...]:
    entry = host.entry
    is_used = bool(entry["job"])
    torch = f", torch {entry['torch']}" if entry["torch"] else ""
    return (
        printable(entry["host"]),
        f"used by {entry['job']}" if is_used else f"idle {age(now - entry['idle_since'])}",
        size_text(host.memory) if host.memory else "-",
        age(now - entry["begin"]),
        "-" if is_used else age(entry["idle_since"] + entry["keep"] - now),
        printable(f"{tilde(Path(entry['python']))}{torch}"),
    )

"""Copies packages of Muster that ranks run on hosts without Muster into a directory that is sent there."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType


def pack(package: ModuleType, folder: Path, name: str) -> None:
    """Copy a package into a directory under the name used with `python -m`."""
    shutil.copytree(
        package.__path__[0],
        folder / name,
        ignore=shutil.ignore_patterns("__pycache__"),
        copy_function=shutil.copyfile,
    )

"""Checkpoints on disk: a folder for each step, complete once its marker is there."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.errors import UsageError

MARKER = "complete.json"
"""Written last and removed first: a folder without it is the rest of an interrupted run."""

_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, kw_only=True)
class Complete:
    """A checkpoint whose every byte is on the disk."""

    step: int
    folder: Path
    ranks: int
    """How many ranks the run had."""
    about: Mapping[str, Any]
    """What the run said about itself, and a run that resumes must say too."""


def folder_of(root: Path, step: int) -> Path:
    """Name the folder of a step; the names sort as the steps do."""
    return root / f"step-{step:08d}"


def find_complete(root: Path) -> tuple[list[Complete], list[str]]:
    """Return the complete checkpoints of a folder, the oldest first, and a sentence about each damaged one."""
    found: list[Complete] = []
    damaged: list[str] = []
    for step, folder in _steps(root):
        if not (folder / MARKER).exists():
            continue
        try:
            marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
            trouble = _difference(folder, marker["files"])
            complete = Complete(step=step, folder=folder, ranks=marker["ranks"], about=marker["about"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged.append(f"{folder} is damaged: {MARKER} cannot be read ({error})")
            continue
        if trouble:
            damaged.append(f"{folder} is damaged: {trouble}")
        else:
            found.append(complete)
    return found, damaged


def mark_complete(folder: Path, *, ranks: int, about: Mapping[str, Any]) -> None:
    """Write the marker of a folder whose files are all on the disk; a crash leaves either all of it or nothing."""
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    text = json.dumps({"ranks": ranks, "about": dict(about), "files": files}, indent=1)
    draft = folder / f"{MARKER}.draft"
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    # The files' names must be on the disk before the marker's, and the marker's before older checkpoints go.
    _sync_folder(folder.parent)
    _sync_folder(folder)
    draft.replace(folder / MARKER)
    _sync_folder(folder)


def remove(folder: Path) -> None:
    """Remove a checkpoint; if that is interrupted, what is left is not taken for a complete one."""
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder)


def make_room(root: Path, folder: Path) -> None:
    """Make the empty folder of a new checkpoint, and clear away what interrupted runs left."""
    for _, left in _steps(root):
        if not (left / MARKER).exists():
            remove(left)
    if any(complete.folder == folder for complete in find_complete(root)[0]):
        raise UsageError(f"{folder} is complete already: it is not overwritten", hint="choose another folder")
    if folder.exists():  # damaged, and therefore not resumed from
        remove(folder)
    folder.mkdir(parents=True)


def prune(root: Path, keep: int) -> None:
    """Remove all complete checkpoints but the newest `keep`; damaged ones are left for a person to look at."""
    for old in find_complete(root)[0][:-keep]:
        remove(old.folder)


def _steps(root: Path) -> list[tuple[int, Path]]:
    folders = [(_NAME.fullmatch(path.name), path) for path in root.iterdir()] if root.is_dir() else []
    return sorted((int(name[1]), path) for name, path in folders if name and path.is_dir())


def _difference(folder: Path, files: Mapping[str, int]) -> str:
    for name, size in files.items():
        path = folder / name
        if not path.exists():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return ""


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems sync no folders; the marker still comes last
    finally:
        os.close(descriptor)

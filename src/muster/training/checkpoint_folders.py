"""Checkpoints on disk: one directory per step, complete once its marker exists."""

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
"""Written last and removed first: a directory without it is left over from an interrupted run."""

_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, kw_only=True)
class Complete:
    """A checkpoint that is completely on disk."""

    step: int
    folder: Path
    ranks: int
    """Number of ranks of the run."""
    about: Mapping[str, Any]
    """The run's `about`, which must be the same in a run that resumes it."""


def folder_of(root: Path, step: int) -> Path:
    """The directory of a step; the names sort in step order."""
    return root / f"step-{step:08d}"


def find_complete(root: Path) -> tuple[list[Complete], list[str]]:
    """Return the complete checkpoints in a directory, oldest first, and a sentence about each damaged one."""
    found: list[Complete] = []
    damaged: list[str] = []
    for step, folder in _steps(root):
        if not (folder / MARKER).exists():
            continue
        try:
            marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
            trouble = _difference(folder, dict(marker["files"]))
            complete = Complete(step=step, folder=folder, ranks=marker["ranks"], about=dict(marker["about"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            damaged.append(f"{folder} is damaged: cannot read {MARKER} ({error})")
            continue
        if trouble:
            damaged.append(f"{folder} is damaged: {trouble}")
        else:
            found.append(complete)
    return found, damaged


def mark_complete(folder: Path, *, ranks: int, about: Mapping[str, Any]) -> None:
    """Atomically write the marker of a directory whose files are all on disk."""
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    text = json.dumps({"ranks": ranks, "about": dict(about), "files": files}, indent=1)
    draft = folder / f"{MARKER}.draft"
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    # The directory entries of the files must be on disk before the marker, and the marker before old ones are removed.
    _sync_folder(folder.parent)
    _sync_folder(folder)
    draft.replace(folder / MARKER)
    _sync_folder(folder)


def remove(folder: Path) -> None:
    """Remove a checkpoint; if interrupted, the rest does not look complete."""
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder)


def make_room(root: Path, folder: Path) -> None:
    """Create the empty directory of a new checkpoint, and remove what interrupted runs left behind."""
    for _, left in _steps(root):
        if not (left / MARKER).exists():
            remove(left)
    if any(complete.folder == folder for complete in find_complete(root)[0]):
        raise UsageError(f"{folder} already has a complete checkpoint", hint="choose another directory")
    if folder.exists():  # damaged, so the run did not resume from it
        remove(folder)
    folder.mkdir(parents=True)


def prune(root: Path, keep: int) -> None:
    """Remove all complete checkpoints but the newest `keep`; damaged ones are kept for inspection."""
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
        pass  # some network file systems cannot sync directories; the marker is still written last
    finally:
        os.close(descriptor)

"""Files and file systems of this host: code, data and free space."""

from __future__ import annotations

import os
import sys
import zlib

from ..code_sync import fingerprint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    from ...shared.requests import Question
else:
    from ...shared.protocol import TypedDict

_MOST_ENTRIES = 10000
_SAMPLE = 65536

_HARMLESS = {"antigravity", "idlelib", "lib2to3", "test", "this", "tkinter", "turtle", "turtledemo"}
"""Modules whose names people often give to their own files, and that importing torch does not need."""


class Code(TypedDict):
    """Whether the working directory exists, and the size and CRC of its files; None for one that is missing."""

    folder: bool
    files: dict[str, list[int] | None]


class FileSystem(TypedDict):
    """Space of a file system in bytes, and its number of free inodes in `files`, or -1 if it has no such limit."""

    free: int
    size: int
    files: int
    read_only: bool


def same_code(ask: Question) -> Code:
    """Return size and CRC of each requested file, or None if it does not exist."""
    found: dict[str, list[int] | None] = {}
    for path in ask["code"]:
        try:
            with open(os.path.join(ask["cwd"], path), "rb") as file:
                found[path] = fingerprint(file.read())
        except OSError:
            found[path] = None
    return {"folder": os.path.isdir(ask["cwd"]), "files": found}


def shadow(ask: Question) -> list[str]:
    """Return the files next to the script that shadow a module."""
    hidden = {"torch", "numpy", *getattr(sys, "stdlib_module_names", sys.builtin_module_names)} - _HARMLESS
    folder = os.path.dirname(os.path.join(ask["cwd"], ask["script"]))
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return []
    modules = [entry for entry in entries if entry.endswith(".py") and entry[:-3] in hidden]
    packages = [name for name in entries if name in hidden and os.path.exists(f"{folder}/{name}/__init__.py")]
    return [os.path.join(folder, entry) for entry in sorted(modules + packages)]


def data(ask: Question) -> dict[str, tuple[str, int, int] | None]:
    """Return the size and a checksum of each file, and the number of entries of each directory."""
    found: dict[str, tuple[str, int, int] | None] = {}
    for path in ask["paths"]:
        whole = os.path.join(ask["cwd"], os.path.expanduser(path))
        try:
            found[path] = ("folder", _entries(whole), 0) if os.path.isdir(whole) else ("file", *_sample(whole))
        except OSError:
            found[path] = None
    return found


def _entries(folder: str) -> int:
    with os.scandir(folder) as listing:
        return sum(1 for _ in zip(range(_MOST_ENTRIES), listing))


def _sample(path: str) -> tuple[int, int]:
    """Size of a file, and CRC of its start and end."""
    with open(path, "rb") as file:
        begin = zlib.crc32(file.read(_SAMPLE))
        size = file.seek(0, 2)
        file.seek(max(0, size - _SAMPLE))
        return size, zlib.crc32(file.read(_SAMPLE), begin)


def disk(ask: Question) -> dict[str, FileSystem]:
    """Return the free space of each file system that a job writes to, by the first path on it."""
    found: dict[str, FileSystem] = {}
    seen: set[int] = set()
    for path in (ask["cwd"], os.path.expanduser("~"), os.environ.get("TMPDIR", "/tmp")):
        try:
            device = os.stat(path).st_dev
            room = os.statvfs(path)
        except OSError:
            continue
        if device not in seen:
            seen.add(device)
            found[path] = {
                "free": room.f_bavail * room.f_frsize,
                "size": room.f_blocks * room.f_frsize,
                # File systems without a fixed number of inodes report 0 of 0.
                "files": room.f_favail if room.f_files else -1,
                "read_only": bool(room.f_flag & os.ST_RDONLY),
            }
    return found


def shm(ask: Question) -> dict[str, int]:
    """Return size and free space of /dev/shm."""
    found = os.statvfs("/dev/shm")
    return {"size": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}

"""Which files --fetch copies, and where to: patterns of the user, and names from hosts that are not trusted. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from muster.errors import UsageError

MOST_FILES = 20_000
"""Files that are copied from one host at most."""

MOST_BYTES = 64 << 30
"""Bytes that are copied from one host at most."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A file on a host."""

    path: str
    """Relative to the working directory there, and here."""
    size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A file to copy."""

    host: str
    found: Found
    target: str
    """Relative to the working directory here."""


def check_patterns(patterns: Sequence[str], *, sync: bool) -> None:
    """Raise UsageError for a value of --fetch that names nothing in the working directory."""
    for pattern in patterns:
        if not sync:
            raise UsageError(
                f"--fetch {pattern} copies files back from the directory that --sync creates on each host",
                hint="add --sync",
            )
        if not pattern or pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
            raise UsageError(
                f"--fetch {pattern or '``'}: must be a path or glob below the working directory",
                hint="for example `--fetch results` or `--fetch 'out/*.pt'`",
            )


def is_asked_for(path: str, patterns: Collection[str]) -> bool:
    """Whether a pattern names a file, or a directory in which it is."""
    parts = path.split("/")
    return any(_covers(tuple(os.path.normpath(pattern).split("/")), tuple(parts)) for pattern in patterns)


def _covers(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    if not pattern or pattern == (".",):
        return True
    if not parts:
        return False
    first, *rest = pattern
    # As in a shell, wildcards leave out hidden files.
    if first == "**":
        hidden = next((place for place, part in enumerate(parts) if part.startswith(".")), len(parts) - 1)
        return any(_covers(tuple(rest or "*"), parts[skipped:]) for skipped in range(hidden + 1))
    named = first.startswith(".") or not parts[0].startswith(".")
    return named and _segment(first).match(parts[0]) is not None and _covers(tuple(rest), parts[1:])


@lru_cache(maxsize=256)
def _segment(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def is_safe(found: Found) -> bool:
    """Whether what a host says of a file can be true of one below the working directory."""
    path, parts = found.path, found.path.split("/")
    named = "\0" not in path and not {"", ".", ".."} & set(parts) and len(path) < 4096
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return named and found.size >= 0 and 0 <= found.mtime_ns < 1 << 63


def within_limits(files: Sequence[Found]) -> tuple[list[Found], list[Found]]:
    """The files that are copied from one host, and those that are left out because it would be too much."""
    taken: list[Found] = []
    size = 0
    for found in files:
        if len(taken) == MOST_FILES or size + found.size > MOST_BYTES:
            break
        taken.append(found)
        size += found.size
    return taken, list(files[len(taken) :])


def copies(by_host: Mapping[str, Sequence[Found]]) -> Iterator[Copy]:
    """What to copy from hosts, in the order of their ranks.

    The first host that has a path keeps it; the same path on another host goes below a directory named after that host.
    A file with the size and time of the first one is the same file, in a directory that the hosts share.
    """
    first: dict[str, Found] = {}
    for host, files in by_host.items():
        for found in files:
            known = first.setdefault(found.path, found)
            if known is found:
                yield Copy(host=host, found=found, target=found.path)
            elif (known.size, known.mtime_ns) != (found.size, found.mtime_ns):
                yield Copy(host=host, found=found, target=f"{host.replace('/', '_')}/{found.path}")

"""Directories that hosts must see besides the contents of "/" itself."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import PurePosixPath

OWN = ("/dev/", "/proc/", "/run/", "/sys/", "/tmp/")
"""Directories of which every host has its own."""


def file_systems_of(paths: Iterable[str], mountinfo: str) -> tuple[str, ...]:
    """The mount points, except "/", that contain these directories; a host's disk shows only "/" itself."""
    points = {_unescape(line.split()[4]) for line in mountinfo.splitlines()}
    wanted = {_point_of(os.path.realpath(path), points) for path in paths}
    return tuple(sorted(point for point in wanted if point != "/" and not f"{point}/".startswith(OWN)))


def hidden_folders(paths: Iterable[str]) -> tuple[str, ...]:
    """The directories that a host's own /tmp or /run would hide, without those inside others."""
    hidden = sorted({real for path in paths if f"{(real := os.path.realpath(path))}/".startswith(OWN)})
    outer = [path for path in hidden if f"{path}/" not in OWN]
    return tuple(path for path in outer if not any(path.startswith(f"{other}/") for other in outer))


def _point_of(path: str, points: set[str]) -> str:
    place = PurePosixPath(path)
    return next((str(folder) for folder in (place, *place.parents) if str(folder) in points), "/")


def _unescape(text: str) -> str:
    return text.encode().decode("unicode_escape") if "\\" in text else text

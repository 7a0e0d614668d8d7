"""Which file systems beside "/" the hosts must see."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import PurePosixPath

OWN = ("/dev/", "/proc/", "/run/", "/sys/", "/tmp/")
"""Folders of which every host has its own."""


def file_systems_of(paths: Iterable[str], mountinfo: str) -> tuple[str, ...]:
    """The mount points, other than "/", on which these folders lie; a host's disk shows only "/" itself."""
    points = {_unescape(line.split()[4]) for line in mountinfo.splitlines()}
    wanted = {_point_of(os.path.realpath(path), points) for path in paths}
    return tuple(sorted(point for point in wanted if point != "/" and not f"{point}/".startswith(OWN)))


def _point_of(path: str, points: set[str]) -> str:
    place = PurePosixPath(path)
    return next((str(folder) for folder in (place, *place.parents) if str(folder) in points), "/")


def _unescape(text: str) -> str:
    return text.encode().decode("unicode_escape") if "\\" in text else text

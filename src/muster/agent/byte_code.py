"""A cache of byte code for hosts where Python would compile torch at every start."""

from __future__ import annotations

import os
import stat
import sys
from importlib.util import cache_from_source, find_spec

PACKAGE = "torch"
"""The package whose imports use the cache. What the user preloads does not: see `_installation`."""

_FREE = 256 << 20
"""Bytes that must be free, so that other programs find room too."""

_INSTALLATIONS = 8
"""Installations of which the cache keeps byte code, about 25 MB each: some jobs unpack a new one each time."""


def folder() -> str:
    """Where the cache is: a directory that survives a reboot and that is not on a network file system."""
    return f"/var/tmp/muster-{os.getuid()}"


class Cached:
    """Lets the imports within a block use the cache if they are for a module of torch that Python compiles each time.

    Images often set PYTHONDONTWRITEBYTECODE and contain no byte code, and other installations are not writable: of
    2.4 s for `import torch` (2.11 with CUDA), 1.4 s are then for the compiler. Ranks do not use the cache.
    """

    def __init__(self, module: str) -> None:
        self._place = _place() if module.partition(".")[0] == PACKAGE else None
        self._before = sys.pycache_prefix, sys.dont_write_bytecode

    def __enter__(self) -> None:
        """Use the cache from now on."""
        if self._place is not None:
            sys.pycache_prefix, sys.dont_write_bytecode = self._place, False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Use it no longer."""
        sys.pycache_prefix, sys.dont_write_bytecode = self._before
        if self._place is None:
            return
        if isinstance(error, (EOFError, TypeError, ValueError)) or _is_full(self._place):  # the errors of `marshal`
            _remove(self._place)


def _place() -> str | None:
    """The directory for the byte code of this installation; None if Python has its own or the cache is not usable."""
    try:
        spec = find_spec(PACKAGE)
    except Exception:
        return None  # the import will report it
    if spec is None or spec.origin is None or not _compiles_each_time(spec.origin):
        return None
    try:
        place = os.path.join(folder(), _installation(spec.origin))
        if not _is_private():
            return None
        space = os.statvfs(folder())
        if space.f_bavail * space.f_frsize < _FREE:
            return None
        os.makedirs(place, 0o700, exist_ok=True)
        os.utime(place)
        _forget_others()
    except OSError:  # a read-only or missing /var/tmp, or somebody is deleting the cache
        return None
    return place


def _compiles_each_time(source: str) -> bool:
    """Whether there is no byte code of this file and Python cannot write it either."""
    if sys.pycache_prefix is not None or not source.endswith(".py") or os.path.exists(cache_from_source(source)):
        return False
    return sys.dont_write_bytecode or not os.access(os.path.dirname(source), os.W_OK)


def _installation(source: str) -> str:
    """A name for this Python and the versions of what is installed beside torch.

    importlib compares only the size and time of a source. Files of two images can have the same path, size and time,
    because some builds give all files the same time; and containers of Apptainer see the /var/tmp of the host.
    """
    from hashlib import sha256  # here, because most hosts need no cache

    package = os.path.dirname(source)
    known = sha256("\0".join([sys.version, package, *sorted(os.listdir(os.path.dirname(package)))]).encode())
    version = os.path.join(package, "version.py")  # with the commit of torch
    if os.path.exists(version):
        with open(version, "rb") as file:
            known.update(file.read())
    return known.hexdigest()[:16]


def _is_private() -> bool:
    """Make the directory; False if someone else may write to it or replace it, because its byte code will be run."""
    above = os.stat(os.path.dirname(folder()))
    if above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX:
        return False
    try:
        os.mkdir(folder(), 0o700)
        os.chmod(folder(), 0o700)  # whatever the umask
    except FileExistsError:
        pass
    found = os.lstat(folder())
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _is_full(place: str) -> bool:
    """Whether the disk or a quota is full: Python 3.11 then leaves a truncated file, and later cannot import it."""
    path = os.path.join(place, f"room-{os.getpid()}")
    room = bytes(16384)
    try:
        with open(path, "wb", 0) as file:
            written = file.write(room)
        os.remove(path)
    except OSError:
        return True
    return written < len(room)


def _forget_others() -> None:
    """Remove what has not been used for longest, if there are too many installations."""
    with os.scandir(folder()) as entries:
        by_age = sorted(entries, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime, reverse=True)
    for entry in by_age[_INSTALLATIONS:]:
        _remove(entry.path)


def _remove(place: str) -> None:
    from shutil import rmtree

    rmtree(place, ignore_errors=True)

"""A cache of byte code for hosts where Python would compile torch at every start."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager
from importlib.util import find_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator


def folder() -> str:
    """Where the cache is: a directory that survives a reboot and that is not on a network file system."""
    return f"/var/tmp/muster-{os.getuid()}"


@contextmanager
def cached(module: str) -> Generator[None]:
    """Let the imports within the block use the cache if importing this module would compile it each time.

    Images often set PYTHONDONTWRITEBYTECODE and contain no byte code, and other installations are not writable: of
    2.4 s for `import torch` (2.11 with CUDA), 1.4 s are then for the compiler. Ranks do not use the cache.
    """
    before = sys.pycache_prefix, sys.dont_write_bytecode
    if _compiles_each_time(module) and _is_usable():
        sys.pycache_prefix, sys.dont_write_bytecode = folder(), False
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before


def _compiles_each_time(module: str) -> bool:
    """Whether there is no byte code of this module and Python cannot write it either."""
    try:
        spec = find_spec(module.partition(".")[0])
    except Exception:
        return False  # the import will report it
    if spec is None or spec.cached is None or os.path.exists(spec.cached) or sys.pycache_prefix is not None:
        return False
    return sys.dont_write_bytecode or not os.access(os.path.dirname(os.path.dirname(spec.cached)), os.W_OK)


def _is_usable() -> bool:
    """Make the directory; False if someone else may write to it, because its byte code will be run."""
    try:
        os.mkdir(folder(), 0o700)
        os.chmod(folder(), 0o700)  # whatever the umask
    except FileExistsError:
        pass
    except OSError:
        return False
    found = os.lstat(folder())
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077

"""What the zygote has imported, and whether a fresh one would import the same for another job."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time

from ..rank import script as rank
from ..rank.preloaded import LATE
from ..shared import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..shared.spawner_messages import Target

    Stamp = tuple[int, int, int]

_MADV_DONTNEED = 4

READ_AT_START = re.compile(
    "|".join(
        (
            LATE,
            # The dynamic loader, the C library and the interpreter read these when they start.
            r"LD_\w+|MALLOC_\w+|GLIBC_TUNABLES|PYTHON\w+|HOME|LANG|LANGUAGE|LC_\w+|TZ|OPENSSL_\w+|SSL_\w+",
            # More of what numpy and torch read when they are imported.
            r"NPY_\w+|GOTO_\w+|MKL_DYNAMIC|LOGLEVEL|TORCH_(?!NCCL_)\w+|PYTORCH_\w+",
        )
    )
)
"""Matches environment variables that have no effect in a fork of a process that was started without them."""

_OF_A_TERMINAL = re.compile(
    r"_|PWD|OLDPWD|SHLVL|COLUMNS|LINES|WINDOWID|DISPLAY|INVOCATION_ID|JOURNAL_STREAM|PS1"
    r"|(?:TERM|SSH|TMUX|STY|VTE|VSCODE|DBUS|XDG|KITTY|ITERM|MUSTER|TORCHELASTIC)\w*"
)
"""Matches environment variables that differ from terminal to terminal, or from job to job."""


class Imported:
    """The modules, libraries and settings of a zygote, and the job that it serves."""

    def __init__(self, preload: Sequence[str], env: Mapping[str, str]) -> None:
        """Remember sys.path and sys.modules before the zygote knows its job; `env` is the environment of its ranks."""
        self._path = list(sys.path)
        self._early = frozenset(sys.modules)
        self._env = dict(env)
        self._preload = set(preload)
        self._first: list[str] = []
        self._files: dict[str, Stamp | None] = {}
        self._settings: dict[str, Stamp | None] = {}
        self._began = time.time()

    def look(self) -> None:
        """Remember all files as they are now, after the imports."""
        self._first = self._job_folders()
        known = [*self._path, *self._first]
        self._path += [folder for folder in sys.path if folder not in known]  # added by an import
        self._files = {path: _stamp(path) for path in _imported_files()}
        self._settings = {path: _stamp(path) for path in _path_files(self._path)}
        release_code()

    def enter(self, target: Target, env: Mapping[str, str]) -> str:
        """Change to another job; returns why a fresh zygote could differ from this one, or nothing."""
        os.chdir(target["cwd"])
        for folder in [folder for folder, finder in sys.path_importer_cache.items() if finder is None]:
            del sys.path_importer_cache[folder]  # it may exist by now
        sys.path[:] = self._path
        rank.set_first_path(target)
        wanted = set(target["preload"])
        extra = sorted(filter(_is_other, self._preload - wanted))
        if extra:
            return f"it has imported {extra[0]}, which this job does not preload"
        name = self._changed_variable(env, any(map(_is_other, wanted)))
        if name:
            return f"{name} differs, which is read when Python or a library starts"
        path = self._changed_file()
        if path:
            return f"{path} has changed"
        self._preload |= wanted
        return self._shadowed(self._job_folders())

    def _job_folders(self) -> list[str]:
        """The directories of the job, which come before the interpreter's own in sys.path."""
        return sys.path[: sys.path.index(self._path[0])]

    def _changed_variable(self, env: Mapping[str, str], has_others: bool) -> str:
        differing = sorted(name for name in {**self._env, **env} if self._env.get(name) != env.get(name))
        if has_others:  # the user's modules may read any variable
            return next((name for name in differing if not _OF_A_TERMINAL.fullmatch(name)), "")
        return next(filter(READ_AT_START.fullmatch, differing), "")

    def _changed_file(self) -> str:
        for path, stamp in self._files.items():
            # A file that was written after the imports began may have been read before or after that.
            if stamp is None or stamp[1] > self._began * 1e9 or stamp != _stamp(path):
                return path
        now = {path: _stamp(path) for path in _path_files(self._path)}
        return next((path for path in {**self._settings, **now} if self._settings.get(path) != now.get(path)), "")

    def _shadowed(self, first: list[str]) -> str:
        """Whether the directories of the job hold other modules than those that were imported."""
        old = next((path for path in self._files if os.path.dirname(path) in self._first), "")
        if old and first != self._first:
            return f"it has imported {old}, which is not part of this job"
        self._first = first
        loaded = {name.partition(".")[0] for name in sys.modules if name not in self._early}
        for folder in first:
            for path in _modules_in(folder):
                name = os.path.relpath(path, folder).partition("/")[0].partition(".")[0]
                if name in loaded and path not in self._files:
                    return f"{path} would be imported instead of another {name}"
        return ""


def release_code() -> None:
    """Unmap the pages of code that the imports have run: 100 MB of torch, which ranks map again from the page cache.

    Only executable mappings of files, which are never written to; a fork does not copy them in any case.
    """
    with open("/proc/self/maps") as file:
        mappings = [line.split() for line in file if " r-xp " in line and "/" in line]
    madvise = processes.libc().madvise
    for first, *_ in mappings:
        begin, end = (int(number, 16) for number in first.split("-"))
        madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


def _is_other(module: str) -> bool:
    return module.partition(".")[0] != "torch"


def _imported_files() -> Iterator[str]:
    """The interpreter, every mapped library, and the files of all modules."""
    yield os.path.realpath(sys.executable)
    with open("/proc/self/maps") as file:
        mapped = {line[line.index("/") :].rstrip("\n") for line in file if "/" in line}
    yield from (path for path in mapped if not path.startswith(("/memfd:", "/dev/", "/SYSV")))
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and os.path.isabs(path):
            yield path


def _path_files(path: Sequence[str]) -> Iterator[str]:
    """The files that add directories to sys.path."""
    yield os.path.join(sys.prefix, "pyvenv.cfg")
    for folder in path:
        try:
            yield from (os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pth"))
        except OSError:
            pass  # a zip file, or a directory that does not exist


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def _modules_in(folder: str) -> Iterator[str]:
    """The files that importing from a directory would read first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        if name.endswith((".py", ".so")):
            yield path
        elif "." not in name and os.path.isfile(os.path.join(path, "__init__.py")):
            yield os.path.join(path, "__init__.py")

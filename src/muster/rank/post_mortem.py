"""Facts about memory, disks and shared memory when a rank has failed; imported only then."""

from __future__ import annotations

import errno
import os
import re

from ..shared import batch_systems, machine
from .failure_text import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from ..shared.host_state import DiskFacts, FailureFacts, MemoryFacts

_DISK_LIMIT = 0.5
"""Timeout in seconds for all disks together; a file system whose server is gone never answers."""

_MOST_PATHS = 8
"""Maximum number of paths that are reported."""

_WRITING = re.compile(
    r"inline_container|PytorchStreamWriter|iostream error|No space left|requested and \d+ written|quota|"
    r"Read-only file system|Input/output error"
)
"""Matches exception messages about a file that could not be written."""


# --- in the rank --------------------------------------------------------------------------------------------------


def paths_of(error: BaseException, traceback: TracebackType | None) -> list[str]:
    """The files that an exception is about: those it names and, if a write failed, those in its local variables."""
    found: list[str] = []
    writing = False
    for one in _chain(error):
        if isinstance(one, OSError):
            found += [path for path in map(_path, (one.filename, one.filename2)) if path]
            writing = writing or one.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EUCLEAN)
        writing = writing or bool(_WRITING.search(text_of(one)))
    if writing:
        found += _paths_in_frames(traceback)
    return list(dict.fromkeys(found))[:_MOST_PATHS]


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain and len(chain) < 8:
        chain.append(following)
        following = following.__cause__ or following.__context__
    return chain


def _paths_in_frames(traceback: TracebackType | None) -> list[str]:
    """Paths and open files in local variables, innermost frame first, because torch does not name the file."""
    frames: list[Any] = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    found: list[str] = []
    for frame in reversed(frames[-20:]):
        for value in list(frame.f_locals.values()):
            try:
                path = _path(value) or _path(getattr(value, "name", None) if hasattr(value, "fileno") else None)
            except Exception:
                continue  # objects of the script may raise on any access
            if path and not (isinstance(value, str) and os.sep not in value):  # most are not paths
                found.append(path)
        if len(found) >= _MOST_PATHS:
            break
    return found


def _path(value: object) -> str:
    """An absolute path as text; empty if the value is not a path."""
    try:
        text = os.fsdecode(value)  # type: ignore[arg-type]
    except TypeError:
        return ""
    is_one = 0 < len(text) < 1024 and text.isprintable() and "://" not in text and text[0] not in "<-"
    return os.path.abspath(text) if is_one else ""


# --- in the agent -------------------------------------------------------------------------------------------------


def facts(before: tuple[int | None, int | None], paths: list[str]) -> FailureFacts:
    """Facts about this host after a rank has failed; `before` are the OOM kill counters from some seconds ago.

    The agent adds what the kernel logged, because only the agent has read along.
    """
    disks, shm = _disks(paths)
    return {"memory": _memory(before), "inside": _inside(), "disks": disks, "shm": shm, "kernel": [], "gpus": []}


def _memory(before: tuple[int | None, int | None]) -> MemoryFacts:
    now = machine.memory_kills()
    group, host = _moved(before[0], now[0]), _moved(before[1], now[1])
    total = _total_memory()
    limit, peak = None, None
    for folder in machine.control_groups("memory"):
        of_this = _number(folder, "memory.max", "memory.limit_in_bytes")
        # Without a limit, the file contains a number larger than all memory, or `max`.
        if of_this is not None and of_this < total and (limit is None or of_this < limit):
            limit, peak = of_this, _number(folder, "memory.peak", "memory.max_usage_in_bytes")
            if peak is None:  # before Linux 5.19, which only counts how often the limit was reached
                peak = limit if machine.counted(os.path.join(folder, "memory.events"), "oom") else 0
    return {"group_kills": group, "host_kills": host, "limit": limit, "peak": peak, "total": total}


def _moved(before: int | None, now: int | None) -> int | None:
    return now - before if now is not None and before is not None else None


def _total_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 1 << 62


def _number(folder: str, *names: str) -> int | None:
    """The number in the first of these files that contains one."""
    for name in names:
        text = machine.read_text(f"{folder}/{name}").strip()
        if text.isdigit():
            return int(text)
    return None


def _inside() -> str:
    around = "kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else "container" if machine.in_container() else ""
    return batch_systems.batch_system(os.environ) or around


_hanging: list[bool] = []
"""Not empty once a disk has not answered; then no disk is queried again."""


def _disks(paths: list[str]) -> tuple[list[DiskFacts], DiskFacts | None]:
    """Free space on the disks of these paths and in /dev/shm; disks that do not answer in time are missing."""
    from _thread import allocate_lock, start_new_thread

    shm = _room("/dev/shm")  # in memory, so it always answers
    found: list[DiskFacts] = []
    done = allocate_lock()
    done.acquire()

    def look() -> None:
        try:
            for path in paths:
                room = _room(path)
                if room is not None:
                    found.append(room)
        finally:
            done.release()

    if not _hanging:
        start_new_thread(look, ())
        if not done.acquire(timeout=_DISK_LIMIT):
            _hanging.append(True)
    return list(found), shm


def _room(path: str) -> DiskFacts | None:
    """The file system of a path that may not exist; None if it is read-only on purpose."""
    folder = path
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    kind, point, failed = _file_system(os.path.realpath(folder), machine.read_text("/proc/self/mountinfo"))
    if status.f_flag & os.ST_RDONLY and folder == path and not failed:
        return None  # a read-only image is always full
    return {
        "path": path,
        "folder": folder,
        "free": status.f_bavail * status.f_frsize,
        "total": status.f_blocks * status.f_frsize,
        "inodes": status.f_favail if status.f_files else None,
        "kind": kind,
        "point": point,
        "failed": failed,
    }


def _file_system(path: str, mountinfo: str) -> tuple[str, str, bool]:
    """The type and mount point of the file system of a path, and whether the kernel made it read-only after an error.

    `mount -o ro` marks the mount and the file system; the kernel marks only the file system. ext4 since Linux 6.12 has
    a word of its own for it.
    """
    found = ("", "", False)
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 6 or len(kinds) < 3:
            continue
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        below = point.rstrip("/") + "/"
        if len(point) >= len(found[1]) and (path == point or path.startswith(below)):
            options = kinds[-1].split(",")
            is_failed = "emergency_ro" in options or ("ro" in options and "rw" in fields[5].split(","))
            found = (kinds[0], point, is_failed)
    return found

"""Failures of a rank's host: memory, disks, shared memory, missing files, SIGKILL from another process. Pure."""

from __future__ import annotations

import re
import signal

from muster.controller.diagnosis import hardware_signs
from muster.controller.diagnosis.explain.case import Case, Explanation, Why
from muster.controller.diagnosis.failure_facts import Disk, Memory
from muster.controller.diagnosis.rank_end import RankEnd, with_facts
from muster.engines.table import ENGINES, load
from muster.errors import HostError
from muster.shared.host_state import FailureFacts
from muster.text import size_text

_USE_LESS = "use a smaller batch or fewer DataLoader workers"

SPAWNER = "the process that starts the ranks"
"""What errors call the zygote, which users need not know."""
_IMPORTER = "the process that imports torch"
"""The same, before ranks start."""


def _owner(end: RankEnd) -> str:
    if end.inside == "container":
        return "its container"
    return f"its {load(end.inside).job_kind}" if end.inside in ENGINES else "its control group"


def _more_memory(end: RankEnd) -> str:
    if end.inside == "container":
        return 'raise the memory limit of the container (`--container-args "--memory 64g"`)'
    return load(end.inside).more_memory if end.inside in ENGINES else "raise the limit"


# --- memory -------------------------------------------------------------------------------------------------------

_WORKER_KILLED = re.compile(r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Killed")

_NO_MEMORY = re.compile(
    r"can't allocate memory: you tried to allocate (\d+) bytes|Unable to allocate [\d.]+ \wiB for an array|"
    r"^MemoryError|\[Errno 12\] Cannot allocate memory",
    re.MULTILINE,
)


def _killed_for_memory(case: Case) -> Explanation | None:
    """The OOM killer killed a rank or its DataLoader worker; proven by the kernel's counters, not by the signal.

    Symptom (row 46): Signal 9 (SIGKILL); DataLoader worker (pid 30105) is killed by signal: Killed
    Source: memory.events, memory.oom_control and oom_kill of /proc/vmstat, seen on Linux 6.18 on 2026-11-15
    """
    end = case.first
    if end.killed:
        who = "the rank"
    elif _WORKER_KILLED.search(end.text):
        who = "a DataLoader worker of the rank"
    else:
        return None
    reason = out_of_memory(end)
    if not reason:
        return None
    held = f". The rank itself used up to {size_text(end.rss)}" if end.rss else ""
    return Explanation(sentence=f"the OOM killer {reason.format(who)}{held}", fix=out_of_memory_fix(end), row=46)


def out_of_memory(end: RankEnd) -> str:
    """Which process ({}) the OOM killer killed and why; empty if its counters did not change."""
    memory = end.memory
    if memory is None:
        return ""
    if memory.group_kills and memory.at_limit and memory.limit is not None:
        limit = size_text(memory.limit)
        return f"killed {{}} because {_owner(end)} on {end.host} reached its memory limit of {limit}"
    if memory.group_kills or (memory.host_kills and memory.group_kills is None):
        return f"killed {{}} because {end.host} ran out of memory ({size_text(memory.total)} in total)"
    if memory.host_kills:
        # Counted on the host, but not in the control group of the agent: the rank may have been moved to another.
        return f"killed a process on {end.host} at that time, probably {{}}"
    return ""


def out_of_memory_fix(end: RankEnd) -> str:
    """What to do about it."""
    memory = end.memory or Memory()
    if memory.at_limit:
        return f"{_more_memory(end)}, or {_USE_LESS}"
    return f"{_USE_LESS}, or run fewer ranks on that host (`--nproc`, or `-H {end.host}:2`)"


def killed_importer(host: str, facts: FailureFacts) -> HostError:
    """The zygote of a host was killed before there were ranks."""
    end = with_facts(RankEnd(rank=-1, host=host, status=-signal.SIGKILL, time=0.0), facts)
    reason = out_of_memory(end)
    if reason:
        at_limit = end.memory is not None and end.memory.at_limit
        hint = _more_memory(end) if at_limit else f"free memory on {host}, or run without it by removing it from -H"
        return HostError(host, f"the OOM killer {reason.format(_IMPORTER)}", hint=hint)
    return HostError(host, f"{_IMPORTER} was killed", hint=f"run it again; `dmesg` on {host} may show why")


def _no_memory(case: Case) -> Explanation | None:
    """An allocation in host memory that was refused; the process survives and reports it.

    Symptom (row 46): DefaultCPUAllocator: can't allocate memory: you tried to allocate 40000000000 bytes
    Source: torch 2.13, c10/core/impl/alloc_cpu.cpp
    """
    found = _NO_MEMORY.search(case.first.text)
    if found is None or "CUDA" in (case.first.message or case.first.summary):
        return None
    wanted = f"{size_text(int(found[1]))} of " if found[1] else ""
    total = (
        f" (the host has {size_text(case.first.memory.total)})" if case.first.memory and case.first.memory.total else ""
    )
    return Explanation(
        sentence=f"out of memory: {case.first.host} refused to allocate {wanted}memory{total}",
        fix=f"{_USE_LESS}; `ulimit -v` on that host shows whether a limit is set",
        row=46,
    )


def _killed_by_somebody(case: Case) -> Explanation | None:
    """SIGKILL that neither Muster nor, according to its counters, the OOM killer sent.

    Symptom: Signal 9 (SIGKILL), while no counter of the OOM killer changed
    Source: man 7 signal; systemd-oomd and earlyoom kill from user space
    """
    end = case.first
    if not end.killed:
        return None
    if end.memory is None or not end.memory.is_counted:
        return Explanation(sentence=f"could not determine who killed it (no OOM counters on {end.host})")
    return Explanation(
        sentence=f"the OOM killer did not run on {end.host}; another process sent SIGKILL: a person, a watchdog of the "
        "site, or a memory guard such as systemd-oomd or earlyoom",
        fix=f"on {end.host}: journalctl --since -10min | grep -iE 'kill|oom'",
    )


# --- shared memory ------------------------------------------------------------------------------------------------

_SHM_TEXT = re.compile(
    r"unable to (?:allocate shared memory\(shm\)|open shared memory object|write to file|resize file) .*"
    r"No space left on device|unable to write to file </torch_",
    re.DOTALL,
)
_NCCL_SHM = "Error: failed to extend /dev/shm/nccl"

# Semaphores of multiprocessing are files there.
_SEMAPHORE = re.compile(r"multiprocessing/synchronize\.py.*No space left on device", re.DOTALL)

_BUS_ERROR = re.compile(r"killed by signal: Bus error|Unexpected bus error encountered in worker")

_SMALL_SHM = 1 << 30
"""Size below which /dev/shm is suspected, in bytes: containers get 64 MB by default, a few data loaders need more."""


def _shm_full(case: Case) -> Explanation | None:
    """/dev/shm is full: reported by torch or NCCL, or a bus error on a host where it is small or full.

    Symptom (row 33): unable to allocate shared memory(shm) for file …; DataLoader worker … killed by signal: Bus error
    Source: torch 2.13 with a /dev/shm of 16 MB on 2026-11-15; pytorch #5040; NVIDIA/nccl-tests #166
    """
    end, shm = case.first, case.first.shm
    said = bool(_SHM_TEXT.search(end.text) or _SEMAPHORE.search(end.text))
    said = said or ("NCCL" in end.text and _NCCL_SHM in end.last_words)
    bus = bool(_BUS_ERROR.search(end.text)) or end.status == -signal.SIGBUS
    if not said and not bus:
        return None
    where = f" on {end.host} ({size_text(shm.total)})" if shm else f" on {end.host}"
    fix = _shm_fix(end)
    if said:
        return Explanation(sentence=f"/dev/shm{where} is full", fix=fix, row=33)
    if shm is not None and (shm.is_full or shm.total < _SMALL_SHM):
        how = "full" if shm.is_full else "small"
        sentence = f"writing to a full /dev/shm causes a bus error, and /dev/shm{where} is {how}"
        return Explanation(sentence=sentence, fix=fix, row=33)
    full = [disk for disk in end.disks if disk.is_full]
    if full:
        return Explanation(
            sentence=f"writing to a mapped file on a full disk causes a bus error: {_room(full[0], end.host)}",
            fix=_disk_fix(full[0], end.host),
            row=51,
        )
    return Explanation(
        sentence="a bus error means that a mapped file could not be read or written: /dev/shm or a disk was full, or "
        "the file was truncated; could not determine which",
        row=33,
    )


def _shm_fix(end: RankEnd) -> str:
    grow = "as root on that host: mount -o remount,size=8g /dev/shm"
    if end.inside in ENGINES and load(end.inside).more_shm:
        grow = load(end.inside).more_shm
    elif end.inside == "container":
        grow = 'start the container with a larger /dev/shm: `--container-args "--shm-size 8g"`, or `--ipc=host`'
    return f"{grow}; or use fewer DataLoader workers and a smaller prefetch_factor"


# --- disks --------------------------------------------------------------------------------------------------------

_NO_SPACE = re.compile(r"No space left on device")  # errno 28 alone may be another limit, such as that of inotify
_QUOTA = re.compile(r"Disk quota exceeded|\[Errno 122\]")

# Incomplete writes reported without naming the disk, by the zip writer of torch and by numpy.
_TORN = re.compile(
    r"enforce fail at inline_container\.cc:\d+\] \. unexpected pos|PytorchStreamWriter failed writing|"
    r"basic_ios::clear: iostream error|\d+ requested and \d+ written"
)


def _disk_full(case: Case) -> Explanation | None:
    """A full disk: reported by the error, or an incomplete file together with statvfs at that moment.

    Symptom (row 51): [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598; No space left on device
    Source: torch 2.13 and numpy on a tmpfs of 5 MB on 2026-11-15
    """
    end = case.first
    if _QUOTA.search(end.text):
        where = f" for {end.disks[0].folder}" if end.disks else ""
        return Explanation(
            sentence=f"your disk quota{where} on {end.host} is exceeded",
            fix="delete files (`quota -s` shows the quota)",
            row=51,
        )
    torn, said = _TORN.search(end.text), _NO_SPACE.search(end.text)
    if not torn and not said:
        return None
    full = next((disk for disk in end.disks if disk.is_full), None)
    if full is not None:
        return Explanation(sentence=f"the disk is full: {_room(full, end.host)}", fix=_disk_fix(full, end.host), row=51)
    seen = "; ".join(_room(disk, end.host) for disk in end.disks[:2])
    sentence = "a file could not be written completely, as happens on a full disk"
    now = "there is room now"
    if said:
        sentence = f"a disk of {end.host} was full; could not determine which"
        now = "those in question have room now"
    room = f" ({now}: {seen})" if seen else ""
    return Explanation(sentence=f"{sentence}{room}", fix=f"on {end.host}: df -h", row=51)


def _room(disk: Disk, host: str) -> str:
    if disk.inodes == 0:
        return f"{disk.folder} on {host} has no free inodes, although {size_text(disk.free)} is free"
    return f"{disk.folder} on {host} has {size_text(disk.free)} of {size_text(disk.total)} free"


def _disk_fix(disk: Disk, host: str) -> str:
    if disk.inodes == 0:
        return f"delete files there (on {host}: df -i {disk.folder}), or save elsewhere"
    return f"free some space there (on {host}: du -xh {disk.folder} | sort -h | tail), or save elsewhere"


def _disk_failed(case: Case) -> Explanation | None:
    """A local disk with I/O errors, or one that the kernel made read-only because of them.

    Symptom: OSError: [Errno 30] Read-only file system; [Errno 5] Input/output error
    Source: ext4 with errors=remount-ro after trigger_fs_error on Linux 6.18 on 2026-11-16
    """
    sign = hardware_signs.of_disk(case.first)
    if not sign:
        return None
    host = case.first.host
    return Explanation(
        sentence=f"{sign} on {host}",
        fix=f"look for the error (on {host}: dmesg | grep -iE 'error|remount' | tail), and run without {host}",
    )


# --- files --------------------------------------------------------------------------------------------------------

_NO_FILE = re.compile(r"FileNotFoundError|\[Errno 2\] No such file or directory|NotADirectoryError")


def _missing_here(case: Case) -> Explanation | None:
    """A file that is missing on one host, but not known to be missing on all.

    Symptom (row 52): FileNotFoundError on the ranks of some hosts
    Source: Python's OSError.filename, and what the agent found on the host
    """
    end = case.first
    missing = next((disk for disk in end.disks if not disk.exists and disk.path.startswith("/")), None)
    if missing is None or (not _NO_FILE.search(end.message or end.summary) and not _NO_FILE.search(end.traceback)):
        return None
    if missing.path not in end.text:
        return None
    hosts = sorted({other.host for other in case.ends})
    lacking = {other.host for other in case.ends if other.failed and missing.path in other.text}
    if len(lacking) == len(hosts):
        return None  # missing everywhere, or there is only one host: the exception is enough
    return Explanation(
        sentence=f"{missing.path} does not exist on {end.host}; of its path, only {missing.folder} exists",
        fix=f"find the hosts that have it (muster check -H {','.join(hosts)} --data {missing.path}); mount or copy it",
        row=52,
    )


_NO_MUSTER = re.compile(r"No module named '?muster\b(?!\.)")


def _no_muster(case: Case) -> Explanation | None:
    """A script imports Muster, or is a module of Muster, and the Python of its rank has no Muster.

    Symptom: ModuleNotFoundError: No module named 'muster'
    Source: Python 3.11 in an environment without Muster on 2026-11-16
    """
    if not _NO_MUSTER.search(case.first.message or case.first.summary or case.first.last_words):
        return None
    return Explanation(
        sentence=f"the Python on {case.first.host} has no Muster",
        fix="install Muster there, or use torch.distributed directly",
    )


ROWS: tuple[Why, ...] = (
    *(_killed_for_memory, _no_memory, _killed_by_somebody, _shm_full, _disk_full, _disk_failed, _missing_here),
    _no_muster,
)

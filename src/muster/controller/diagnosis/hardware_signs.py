"""Signs of failed hardware in the kernel's log, in the messages of CUDA and on disks. Pure.

A sign is a clause about a host: `GPU 3 fell off the bus (Xid 79)`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any, cast

from muster.controller.diagnosis.failure_facts import Disk
from muster.controller.diagnosis.rank_end import RankEnd
from muster.text import size_text

# From NVIDIA's catalog of Xids (docs.nvidia.com/deploy/xid-errors): those that ask for a reset, a reboot or a repair.
# Missing are those that a program can cause, above all 13 and 31 (illegal access), 43 and 45 (its end), 68 and 69.
_XIDS = {
    48: "had an uncorrectable memory error",
    62: "had a halted controller",
    63: "had bad memory rows and needs a reset",
    64: "could not remap bad memory rows",
    74: "had a failing NVLink",
    79: "fell off the bus",
    92: "had too many memory errors",
    94: "had an uncorrectable memory error",
    95: "had an uncorrectable memory error",
    119: "stopped responding",
    120: "stopped responding",
    140: "had an uncorrectable memory error",
    143: "failed to initialize",
}
"""What was wrong with a GPU, by the number of its Xid."""

_WORST = (79, 95, 48, 140, 64, 94, 119, 120, 74, 62, 143, 92, 63)
"""All of them, the plainest cause first: a GPU that falls off the bus also causes others."""

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)\b")
_MEMORY = re.compile(r"Memory failure: .* due to hardware memory corruption")

_TEXTS = (
    (re.compile(r"uncorrectable ECC error encountered"), "a GPU had an uncorrectable memory error (ECC)"),
    (re.compile(r"uncorrectable NVLink error"), "a GPU had a failing NVLink"),
    (
        re.compile(r"GPU is lost|Unable to determine the device handle for GPU|GPU has fallen off the bus"),
        "a GPU fell off the bus",
    ),
    (re.compile(r"CUDA error: system not yet initialized"), "the fabric manager of its NVSwitch did not run"),
)
"""Messages of CUDA and NVML that only a failed GPU or host causes."""

_LOST = re.compile(r"GPU is lost|Unable to determine the device handle for|has fallen off the bus")
"""What nvidia-smi prints about a GPU that does not answer."""

_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL})
"""Not SIGABRT, which libraries use to report errors of their callers."""

_SMALL_SHM = 1 << 30
"""Bytes of /dev/shm below which a bus error is no wonder."""

_GPU_ERROR = re.compile(r"CUDA (?:driver )?error|CUBLAS_STATUS|CUDNN_STATUS|cuDNN error|NCCL error|nccl\w*Error|NVML")

_GPU_MISUSE = re.compile(
    r"out of memory|CUBLAS_STATUS_ALLOC_FAILED|device-side assert triggered|invalid device ordinal|invalid argument|"
    r"invalid configuration argument|no kernel image|Duplicate GPU|Invalid usage|no CUDA-capable device"
)
"""Errors of CUDA and NCCL that only programs and settings cause."""

_GPU_BUG = re.compile(r"illegal memory access|misaligned address|illegal instruction|unspecified launch failure")
"""Errors of CUDA that programs cause more often than hardware does."""


_DISKS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "jfs", "bcachefs"})
"""File systems on a disk of the host itself."""

_LOCAL = _DISKS | {"tmpfs", "ramfs", "overlay"}
"""File systems that no other host can fill."""

_NO_SPACE = re.compile(
    r"No space left on device|inline_container\.cc:\d+\] \. unexpected pos|PytorchStreamWriter failed writing|"
    r"basic_ios::clear: iostream error|\d+ requested and \d+ written"
)
_QUOTED = re.compile(r"'([^'\n]+)'")
"""The name of a file in an exception of Python, which may be relative."""

_QUOTA = re.compile(r"Disk quota exceeded|\[Errno 122\]")
_READ_ONLY = re.compile(r"\[Errno 30\]|Read-only file system")
_DISK_ERROR = re.compile(r"\[Errno (?:5|117)\]|Input/output error|Structure needs cleaning")


def message_of(end: RankEnd) -> str:
    """What a rank said of its failure, without lines of source code, which may quote any message."""
    said = "\n".join(dict.fromkeys(filter(None, (end.message or end.summary, end.root))))
    return said or end.last_words


def in_kernel_log(end: RankEnd) -> str:
    """The worst sign in the kernel's log of its host; empty if there is none."""
    found: dict[int, str] = {}
    for line in end.kernel:
        xid = _XID.search(line)
        if xid and int(xid[2]) in _XIDS:
            found.setdefault(int(xid[2]), xid[1])
    for number in _WORST:
        if number in found:
            return f"{_gpu(found[number], end.gpus)} {_XIDS[number]} (Xid {number})"
    return "its memory was defective (hardware memory corruption)" if any(map(_MEMORY.search, end.kernel)) else ""


def _gpu(address: str, known: tuple[str, ...]) -> str:
    number = next((at for at, other in enumerate(known) if other.lower().startswith(address.lower())), None)
    return f"the GPU at {address}" if number is None else f"GPU {number}"


def in_message(end: RankEnd) -> str:
    """The sign in what a rank said; empty if there is none."""
    said = message_of(end)
    return next((sign for pattern, sign in _TEXTS if pattern.search(said)), "")


def in_answer(outcome: Mapping[str, Any]) -> str:
    """The sign in the answer of a host to the probe `nvidia.gpus`; empty if there is none.

    No sign: nvidia-smi that takes long, as without persistence mode, and fewer GPUs than devices, as in a Slurm job.
    """
    answer: Any = outcome.get("value")
    problem = cast(dict[str, Any], answer).get("problem") if isinstance(answer, dict) else None
    is_lost = isinstance(problem, str) and bool(_LOST.search(problem))
    return "a GPU fell off the bus, according to nvidia-smi" if is_lost else ""


def may_be_gpus(end: RankEnd) -> bool:
    """Whether a rank ended as it does if its GPU, or that of another rank, has failed."""
    said = message_of(end)
    return not is_ordinary(end) and bool(_GPU_ERROR.search(said) or "Watchdog caught collective" in said)


def is_ordinary(end: RankEnd) -> bool:
    """Whether it ended by an exception that has nothing to do with its GPU."""
    said = message_of(end)
    return bool(end.summary) and (not _GPU_ERROR.search(said) or bool(_GPU_MISUSE.search(said))) and not in_message(end)


def may_be_hardware(end: RankEnd) -> bool:
    """Whether failed hardware is a likely cause: a crash, or an error of CUDA that programs do not cause.

    Not so for an ordinary exception, for lack of memory and for a signal that somebody sent.
    """
    if -end.status == signal.SIGBUS and (end.shm is None or end.shm.is_full or end.shm.total < _SMALL_SHM):
        return False
    said = message_of(end)
    is_gpus = bool(_GPU_ERROR.search(said)) and not is_ordinary(end) and not _GPU_BUG.search(said)
    return -end.status in _CRASHES or (is_gpus and end.status > 0)


def of_disk(end: RankEnd) -> str:
    """What is wrong with a local disk that a rank wrote to or read from; empty if nothing is."""
    said = message_of(end)
    if _QUOTA.search(said):
        return ""
    # The other disks are those of variables, of the working directory and of /tmp.
    quoted = ["/" + name.lstrip("./") for name in _QUOTED.findall(said)]
    named = [disk for disk in end.disks if disk.path.endswith(tuple(quoted))]
    if _NO_SPACE.search(said):
        full = next((disk for disk in named or end.disks if disk.is_full and _is_hosts_own(disk)), None)
        return f"the disk of {full.place} was full ({size_text(full.total)})" if full else ""
    if _READ_ONLY.search(said):
        failed = next((disk for disk in named or end.disks if disk.failed and disk.kind in _DISKS), None)
        return f"the kernel made the disk of {failed.place} read-only after an error" if failed else ""
    if _DISK_ERROR.search(said):
        broken = next((disk for disk in named if disk.kind in _DISKS), None)
        return f"the disk of {broken.place} had I/O errors" if broken else ""
    return ""


def _is_hosts_own(disk: Disk) -> bool:
    return disk.kind in _LOCAL and not disk.folder.startswith("/dev/shm")

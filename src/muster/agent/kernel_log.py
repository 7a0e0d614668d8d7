"""What the kernel logs about failed hardware while ranks run."""

from __future__ import annotations

import os

_PATH = "/dev/kmsg"

_HARDWARE = r"NVRM: Xid \(.*\): \d+|Memory failure: .* due to hardware memory corruption"
"""Lines of the NVIDIA driver (most of them are about programs; the controller knows which are not), and of the kernel
about a process that used defective memory."""

_SIGNS = ("NVRM: Xid", "Memory failure")
"""One of these is in each of them."""

_MOST_LINES = 32
_LONGEST = 300
"""Limits on what is kept, so that a driver that logs without end does no harm."""

_MOST_RECORDS = 20_000
"""Records that are read at once."""

_GPUS = "/proc/driver/nvidia/gpus"


class KernelLog:
    """The lines about hardware since the last start of ranks; none where a user must not read the kernel's log."""

    def __init__(self, path: str = _PATH) -> None:
        self._path = path
        self._file = -1
        self._lines: list[str] = []

    def begin(self) -> None:
        """Forget what has been logged so far."""
        self._lines = []
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self._close()  # only root may read it on many systems, and most containers have none

    def lines(self) -> list[str]:
        """The lines about hardware since `begin`."""
        for _ in range(_MOST_RECORDS if self._file >= 0 else 0):
            try:
                data = os.read(self._file, 1 << 13)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the kernel has overwritten records that were not read
            except OSError:
                self._close()
                break
            if not data:
                break
            for record in data.decode("utf-8", "replace").splitlines():
                text = record.partition(";")[2]
                if len(self._lines) < _MOST_LINES and _is_hardware(text):
                    self._lines.append(text[:_LONGEST])
        return self._lines

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _is_hardware(text: str) -> bool:
    if not any(sign in text for sign in _SIGNS):
        return False
    import re  # here, because hardly any job needs it, and it takes each host 3 ms of CPU

    return re.search(_HARDWARE, text) is not None


def gpu_addresses() -> list[str]:
    """The PCI address of each GPU, in the order of nvidia-smi: `0000:3b:00.0`."""
    try:
        return sorted(os.listdir(_GPUS))
    except OSError:
        return []

"""Reads GPU metrics from the driver, in a child process, because a hanging driver must not block the agent.

The child queries NVML, which is part of the driver, every two seconds; if that library cannot be loaded, it runs
nvidia-smi less often. A child that stays silent is killed, and a new one is started a minute later.
"""

from __future__ import annotations

import os
import time

from ..shared import light_selectors as selectors
from ..shared import machine, processes
from ..shared.wire import LineReader, ProtocolError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from typing import Any

    from ..shared.replies import GpuGauges

EVERY = 2.0
"""Seconds between two readings."""

_SILENT_LIMIT = 10.0
"""Seconds without a reading after which the child counts as hung; a driver that starts each time takes four."""

_TRY_AGAIN = 60.0
"""Seconds until a new child is started after one has failed."""

_SHARE = 0.002
"""Maximum share of one CPU for nvidia-smi, which loads the driver's library each time."""

_REASONS = (
    (0x40 | 0x20, "too hot"),
    (0x80, "external power brake"),
    (0x08, "hardware slowdown"),
    (0x04, "power limit reached"),
    (0x02, "clock lowered by an administrator"),
)
"""NVML's bits for a throttled clock (nvmlClocksEventReasons), most severe first."""

_SMI_FIELDS = (
    "index", "name", "utilization.gpu", "memory.used", "memory.total", "clocks.sm", "clocks.max.sm", "temperature.gpu",
    "clocks_throttle_reasons.hw_thermal_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown", "clocks_throttle_reasons.sw_power_cap",
)  # fmt: skip
_SMI_BITS = (0x40, 0x20, 0x80, 0x04)
"""The NVML bits that the last four fields correspond to."""


def are_here() -> bool:
    """Whether this host has an NVIDIA GPU, according to its device files."""
    return machine.gpu_devices() > 0


def why_throttled(bits: int) -> str:
    """Why a clock is throttled; empty if it is not, or only because the GPU is idle."""
    return next((words for mask, words in _REASONS if bits & mask), "")


class Reader:
    """The child process and its last reading."""

    def __init__(self, selector: selectors.Selector) -> None:
        self.selector = selector
        self.gpus: list[GpuGauges] = []
        self.memory: dict[int, int] = {}
        """GPU memory in bytes by process id, if the driver reports it."""
        self._pid = 0
        self._read = self._ask = -1
        self._heard = 0.0
        self._begin_at = 0.0
        self._lines = LineReader()

    def step(self) -> None:
        """Start the child, or kill it if it hangs; raises OSError if it cannot be started, and retries later."""
        now = time.monotonic()
        if self._pid and now - self._heard > _SILENT_LIMIT:
            self.end()
        if not self._pid and now >= self._begin_at:
            self._begin()

    def hurry(self) -> None:
        """Request a reading now."""
        if self._pid:
            try:
                os.write(self._ask, b"?")
            except OSError:
                pass  # it has exited, or the pipe is full of requests

    def end(self) -> None:
        """Kill the child and discard its last reading."""
        if self._pid:
            processes.kill_session(self._pid)  # including an nvidia-smi that it may wait for
            self.selector.unregister(self._read)
            os.close(self._read)
            os.close(self._ask)
            self._pid = 0
        self.gpus, self.memory = [], {}
        self._begin_at = time.monotonic() + _TRY_AGAIN

    def _begin(self) -> None:
        self._begin_at = time.monotonic() + _TRY_AGAIN
        pipes: list[int] = []
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            read, write, asked, ask = pipes
            pid = processes.fork(lambda: _work(write, asked), write, asked)
        except OSError:  # the limit of processes or descriptors is reached
            for fd in pipes:
                os.close(fd)
            raise
        os.close(write)
        os.close(asked)
        os.set_blocking(ask, False)
        self._pid, self._read, self._ask = pid, read, ask
        self._heard, self._lines = time.monotonic(), LineReader()
        self.selector.register(read, selectors.EVENT_READ, self._on_reading)

    def _on_reading(self) -> None:
        data = os.read(self._read, 1 << 16)
        if not data:
            self.end()
            return
        self._heard = time.monotonic()
        try:
            for reading in self._lines.feed(data):
                self.gpus = reading["gpus"]
                self.memory = {int(pid): used for pid, used in reading["memory"].items()}
        except (ProtocolError, ValueError, LookupError):
            self.end()  # a library of the driver has written to the pipe


# --- in the child -------------------------------------------------------------------------------------------


def _work(write: int, asked: int) -> None:
    import select

    nvml = Nvml.load()
    while True:
        begin = sum(os.times()[:4])
        gpus, memory = (nvml.read(), nvml.memory()) if nvml is not None else (_ask_smi(), {})
        os.write(write, encode({"gpus": gpus, "memory": memory}))
        used = sum(os.times()[:4]) - begin
        rest = max(EVERY, min(used / _SHARE, _SILENT_LIMIT * 0.6)) if nvml is None else EVERY
        if select.select([asked], [], [], rest)[0]:
            os.read(asked, 64)


class Nvml:
    """The driver's library, through ctypes."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    @classmethod
    def load(cls) -> Nvml | None:
        """Load the library; None if this host has none that works."""
        import ctypes

        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            return cls(library) if library.nvmlInit_v2() == 0 else None
        except (OSError, AttributeError):
            return None

    def _devices(self) -> list[ctypes.c_void_p]:
        from ctypes import byref, c_uint, c_void_p

        count = c_uint()
        self.library.nvmlDeviceGetCount_v2(byref(count))
        devices: list[ctypes.c_void_p] = []
        for number in range(count.value):
            device = c_void_p()
            # A GPU that has fallen off the bus keeps its index in the list.
            self.library.nvmlDeviceGetHandleByIndex_v2(number, byref(device))
            devices.append(device)
        return devices

    def _number(self, kind: Any, function: str, *arguments: Any) -> int | None:
        from ctypes import byref

        value = kind()
        call = getattr(self.library, function, None)
        return value.value if call is not None and call(*arguments, byref(value)) == 0 else None

    def read(self) -> list[GpuGauges]:
        """All GPUs, with the fields of GpuState."""
        from ctypes import byref, c_uint, c_ulonglong, create_string_buffer

        found: list[GpuGauges] = []
        for index, device in enumerate(self._devices()):
            if not device:
                found.append({"index": index, "name": "not responding"})
                continue
            name = create_string_buffer(96)
            self.library.nvmlDeviceGetName(device, name, 96)
            use = (c_uint * 2)()
            has_use = self.library.nvmlDeviceGetUtilizationRates(device, byref(use)) == 0
            used, total = self._memory_of(device)
            reasons = self._number(c_ulonglong, "nvmlDeviceGetCurrentClocksThrottleReasons", device)
            found.append(
                {
                    "index": index,
                    "name": name.value.decode(errors="replace"),
                    "use": use[0] / 100 if has_use else None,
                    "memory_used": used,
                    "memory_total": total,
                    "clock": self._number(c_uint, "nvmlDeviceGetClockInfo", device, 1),
                    "clock_max": self._number(c_uint, "nvmlDeviceGetMaxClockInfo", device, 1),
                    "temperature": self._number(c_uint, "nvmlDeviceGetTemperature", device, 0),
                    "throttled": why_throttled(reasons or 0),
                }
            )
        return found

    def _memory_of(self, device: ctypes.c_void_p) -> tuple[int | None, int | None]:
        """Used and total bytes; version 2 of the call excludes memory reserved by the driver, as nvidia-smi does."""
        from ctypes import byref, c_ulonglong

        # nvmlMemory_v2_t: version (the structure's size, and 2 in its highest byte), total, reserved, free, used.
        second = (c_ulonglong * 5)(40 | 2 << 24)
        call = getattr(self.library, "nvmlDeviceGetMemoryInfo_v2", None)
        if call is not None and call(device, byref(second)) == 0:
            return second[4], second[1]
        first = (c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
        known = self.library.nvmlDeviceGetMemoryInfo(device, byref(first)) == 0
        return (first[2], first[0]) if known else (None, None)

    def memory(self) -> dict[int, int]:
        """GPU memory in bytes by process id; NVML uses the host's ids, which do not match those in a container."""
        from ctypes import Structure, byref, c_uint, c_ulonglong

        class Process(Structure):
            """nvmlProcessInfo_t, from version 2 of the call on."""

            _fields_ = (
                ("pid", c_uint),
                ("used", c_ulonglong),
                ("instance", c_uint),
                ("compute", c_uint),
            )

        names = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
        call = next((getattr(self.library, name) for name in names if hasattr(self.library, name)), None)
        found: dict[int, int] = {}
        for device in self._devices() if call is not None else ():
            count, table = c_uint(64), (Process * 64)()
            if device and call(device, byref(count), table) == 0:  # type: ignore[misc]
                for process in table[: count.value]:
                    if process.used < 1 << 60:  # all bits set: not available
                        found[process.pid] = found.get(process.pid, 0) + process.used
        return found


def _ask_smi() -> list[GpuGauges]:
    from .probes.reading import run

    code, text = run("nvidia-smi", "--query-gpu=" + ",".join(_SMI_FIELDS), "--format=csv,noheader,nounits")
    return read_smi(text) if code == 0 else []


def read_smi(text: str) -> list[GpuGauges]:
    """Parse the output of nvidia-smi for the fields above into the fields of GpuState."""
    found: list[GpuGauges] = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(", ")]
        if len(fields) != len(_SMI_FIELDS) or not fields[0].isdigit():
            continue
        use, used, total, clock, clock_max, celsius = (_number(field) for field in fields[2:8])
        bits = sum(bit for place, bit in enumerate(_SMI_BITS) if fields[8 + place] == "Active")
        found.append(
            {
                "index": int(fields[0]),
                "name": fields[1],
                "use": None if use is None else use / 100,
                "memory_used": None if used is None else used << 20,
                "memory_total": None if total is None else total << 20,
                "clock": clock,
                "clock_max": clock_max,
                "temperature": celsius,
                "throttled": why_throttled(bits),
            }
        )
    return found


def _number(text: str) -> int | None:
    try:
        return int(float(text))
    except ValueError:
        return None  # [N/A], [Not Supported]

"""What NVML says of a GPU's memory, in both forms of its call."""

from __future__ import annotations

import ctypes
from typing import Any

from muster.agent.gpu_metrics import Nvml

GIB = 1 << 30


class Driver:
    """A driver with one GPU of 80 GiB, of which 1 is the driver's own and 2 are in use."""

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, device: Any) -> int:
        device._obj.value = 7
        return 0

    def nvmlDeviceGetName(self, device: Any, name: Any, size: int) -> int:
        name.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: Any, use: Any) -> int:
        return 3  # not supported

    def nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> int:
        memory._obj[:] = [80 * GIB, 77 * GIB, 3 * GIB]
        return 0


class NewerDriver(Driver):
    """The same with the second form, which needs its version and size."""

    def nvmlDeviceGetMemoryInfo_v2(self, device: Any, memory: Any) -> int:
        if ctypes.sizeof(memory._obj) != 40 or memory._obj[0] != 0x02000028:
            return 25  # NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        memory._obj[1:] = [80 * GIB, 1 * GIB, 77 * GIB, 2 * GIB]
        return 0


def memory(driver: Any) -> tuple[int, int]:
    (gpu,) = Nvml(driver).read()
    return gpu["memory_used"] // GIB, gpu["memory_total"] // GIB


def test_what_the_driver_keeps_for_itself_is_not_used_memory_as_in_nvidia_smi():
    assert memory(NewerDriver()) == (2, 80)


def test_a_driver_without_the_second_form_is_asked_in_the_first():
    assert memory(Driver()) == (3, 80)

"""The NVIDIA GPUs of this host, and the fabric manager."""

from __future__ import annotations

import glob
import os
import re

from ...shared.machine import gpu_devices
from .reading import find_program, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    from ...shared.requests import Question
else:
    from ...shared.protocol import TypedDict

_FIELDS = ("index", "uuid", "name", "driver_version", "memory.total", "memory.used", "temperature.gpu")
_MORE = (
    "ecc.errors.uncorrected.volatile.total",
    "clocks_throttle_reasons.hw_thermal_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown",
    "pcie.link.width.current",
    "pcie.link.width.max",
)
_NEWER = ("fabric.state",)


class Gpu(TypedDict):
    """A GPU as nvidia-smi reports it: memory in MiB, current and maximum number of PCIe lanes; -1 if unknown."""

    index: int
    uuid: str
    name: str
    driver: str
    memory: float
    used: float
    celsius: float
    ecc: float
    hot: bool
    braked: bool
    width: tuple[float, float]
    fabric: str


class GpuProcess(TypedDict):
    """A process that uses a GPU: its memory in MiB and its user id, -1 if it is in another container."""

    uuid: str
    pid: int
    name: str
    used: float
    uid: int


class Gpus(TypedDict):
    """The GPUs that respond, the error of nvidia-smi, the processes, and remapped rows (UUID, failure, pending)."""

    devices: int
    gpus: list[Gpu]
    problem: str
    asked: bool
    processes: list[GpuProcess]
    remapped: list[list[str]]


def gpus(ask: Question) -> Gpus | None:
    """Return all GPUs and the processes that use them, or None if no NVIDIA GPU is visible."""
    devices = gpu_devices()
    asked = bool(find_program("nvidia-smi"))
    if not asked and not devices:
        return None
    found, problem = _query_gpus() if asked else ([], "")
    users: list[list[str]] = []
    remapped: list[list[str]] = []
    try:
        users = _smi("--query-compute-apps=gpu_uuid,pid,process_name,used_memory") if found else []
        remapped = _smi("--query-remapped-rows=gpu_uuid,remapped_rows.failure,remapped_rows.pending") if found else []
    except RuntimeError:
        pass  # an old driver, or GPUs that do not support the query
    return {
        "devices": devices,
        "gpus": found,
        "problem": problem,
        "asked": asked,
        "processes": [_process(row) for row in users],
        "remapped": [row for row in remapped if "Yes" in row[1:]],
    }


def _query_gpus() -> tuple[list[Gpu], str]:
    """The GPUs, or the error of nvidia-smi. An old driver rejects fields it does not know."""
    problem = ""
    for fields in (_FIELDS + _MORE + _NEWER, _FIELDS + _MORE, _FIELDS):
        try:
            return [_gpu(row) for row in _smi("--query-gpu=" + ",".join(fields))], ""
        except RuntimeError as error:
            problem = str(error)
            if "not a valid field" not in problem:
                break
    return [], problem


def _gpu(row: list[str]) -> Gpu:
    every = _FIELDS + _MORE + _NEWER
    index, uuid, name, driver, memory, used, celsius, *more = [*row, *[""] * len(every)][: len(every)]
    ecc, hot, braked, width, full_width, fabric_state = more
    return {
        "index": int(_number(index)),
        "uuid": uuid,
        "name": name,
        "driver": driver,
        "memory": _number(memory),
        "used": _number(used),
        "celsius": _number(celsius),
        "ecc": _number(ecc),
        "hot": hot == "Active",
        "braked": braked == "Active",
        "width": (_number(width), _number(full_width)),
        "fabric": fabric_state,
    }


def _process(row: list[str]) -> GpuProcess:
    uuid, pid, *name, used = row
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        owner = -1  # it runs in another container
    return {"uuid": uuid, "pid": int(_number(pid)), "name": ", ".join(name), "used": _number(used), "uid": owner}


def _smi(query: str) -> list[list[str]]:
    code, text = run("nvidia-smi", query, "--format=csv,noheader,nounits")
    if code:
        raise RuntimeError(text or f"exit code {code}")
    return [[field.strip() for field in line.split(", ")] for line in text.splitlines()]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def fabric(ask: Question) -> dict[str, str] | None:
    """Return state and version of the fabric manager, or None if there is no NVSwitch."""
    if not glob.glob("/dev/nvidia-nvswitch[0-9]*"):
        return None
    version = re.search(r"(\d+\.\d+[\d.]*)", run("nv-fabricmanager", "--version", timeout=2)[1])
    return {
        "state": run("systemctl", "is-active", "nvidia-fabricmanager", timeout=2)[1],
        "version": version.group(1) if version else "",
    }

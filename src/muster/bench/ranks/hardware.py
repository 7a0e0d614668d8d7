"""Hardware facts of this rank's host: its links with their speeds, and its free memory.

Nothing is guessed: speeds are those reported by the kernel or nvidia-smi, and counters show which link carried the
data.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, TypedDict

_NET = Path("/sys/class/net")
_INFINIBAND = Path("/sys/class/infiniband")
_SMI_LIMIT = 15.0


class Link(TypedDict):
    """A network interface or InfiniBand port: its speed in bit/s if known, and the bytes it has sent."""

    speed: float | None
    virtual: bool
    mtu: int | None
    sent: int


def links() -> dict[str, Link]:
    """Every interface with an address and every InfiniBand port, with its speed in bit/s and bytes sent so far."""
    found = {name: _interface(_NET / name) for name in sorted(_with_address()) if (_NET / name).is_dir()}
    for port in sorted(_INFINIBAND.glob("*/ports/*")) if _INFINIBAND.is_dir() else []:
        rate = re.match(r"([\d.]+) Gb/sec", _read(port / "rate"))
        if "ACTIVE" in _read(port / "state") and rate:
            words = _read(port / "counters" / "port_xmit_data")
            found[f"{port.parts[-3]}:{port.name}"] = {
                "speed": float(rate[1]) * 1e9,
                "virtual": False,
                "mtu": None,
                "sent": 4 * int(words) if words.isdigit() else 0,  # the counter's unit is four bytes
            }
    return found


def carriers(before: dict[str, Link], after: dict[str, Link]) -> list[dict[str, object]]:
    """The links that sent at least a tenth of what the busiest one sent."""
    moved = {name: link["sent"] - before[name]["sent"] for name, link in after.items() if name in before}
    most = max(moved.values(), default=0)
    return [
        {"name": name, "speed": after[name]["speed"], "virtual": after[name]["virtual"], "mtu": after[name]["mtu"]}
        for name, sent in moved.items()
        if sent > 0 and sent >= most / 10
    ]


def _interface(folder: Path) -> Link:
    speed = _read(folder / "speed")  # Mbit/s; -1 or an error if unknown
    # Devices, bonds and VLANs have a physical link; the reported speed of a veth, tap or bridge means nothing.
    real = (folder / "device").exists() or re.search(r"DEVTYPE=(bond|vlan)", _read(folder / "uevent")) is not None
    return {
        "speed": int(speed) * 1e6 if speed.isdigit() and int(speed) > 0 else None,
        "virtual": not real,
        "mtu": int(_read(folder / "mtu") or 0) or None,
        "sent": int(_read(folder / "statistics" / "tx_bytes") or 0),
    }


def _with_address() -> set[str]:
    """Interfaces with an address; this excludes ports of a bond or bridge, whose bytes would be counted twice."""
    v4 = [line.split()[0] for line in _read(Path("/proc/net/route")).splitlines()[1:]]
    v6 = [line.split()[5] for line in _read(Path("/proc/net/if_inet6")).splitlines()]
    return {"lo", *v4, *v6}


def gpu(device: Any) -> dict[str, object]:
    """The GPU's name, the speed of its PCIe link, and its NVLinks; empty for a CPU."""
    if device.type != "cuda":
        return {}
    properties = _cuda().get_device_properties(device)
    facts: dict[str, object] = {"gpu": properties.name, "pcie": None, "nvlink": []}
    if hasattr(properties, "pci_bus_id"):
        address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        facts["pcie"] = _pcie(Path("/sys/bus/pci/devices") / address)
        facts["nvlink"] = _nvlink(address)
    return facts


def _pcie(folder: Path) -> dict[str, float] | None:
    speed = re.match(r"([\d.]+) GT/s", _read(folder / "max_link_speed"))
    width = _read(folder / "max_link_width")
    return {"transfers": float(speed[1]) * 1e9, "lanes": int(width)} if speed and width.isdigit() else None


def _nvlink(address: str) -> list[float]:
    """Bytes per second and direction of each active NVLink."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "nvlink", "--status", "-i", address],
            capture_output=True,
            text=True,
            timeout=_SMI_LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [float(speed) * 1e9 for speed in re.findall(r"Link \d+: ([\d.]+) GB/s", asked.stdout)]


def free_memory(device: Any) -> int:
    """Free bytes of this rank's GPU, or of its host or container, which its ranks share."""
    if device.type == "cuda":
        return int(_cuda().mem_get_info(device)[0])
    left = [int(amount) << 10 for amount in re.findall(r"MemAvailable: +(\d+) kB", _read(Path("/proc/meminfo")))]
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        for folder in _cgroups():
            numbers = [_read(folder / limit), _read(folder / used)]
            if all(number.isdigit() for number in numbers):
                left.append(max(0, int(numbers[0]) - int(numbers[1])))
    return min(left, default=1 << 30)


def _cgroups() -> list[Path]:
    """The directories of this process's memory cgroup, in version 1 and 2, inside a container and outside."""
    found: list[Path] = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup", "memory" if "memory" in controllers.split(",") else "")
        found += [root, Path(f"{root}{path}")]
    return found


def _cuda() -> Any:
    import torch

    return torch.cuda


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""

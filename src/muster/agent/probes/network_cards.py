"""The network cards of this host: Ethernet and InfiniBand."""

from __future__ import annotations

import fcntl
import glob
import os
import socket
import struct

from .reading import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..check_probes import Question

_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B

_PLUGIN_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
)
"""Where packages put the network plug-ins of NCCL."""


def links(ask: Question) -> dict[str, Any]:
    """Return each card with its network, packet size, speed and errors."""
    cards: dict[str, Any] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for name in sorted(os.listdir("/sys/class/net")):
            request = struct.pack("256s", name.encode()[:15])
            try:
                address = fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24]
                mask = fcntl.ioctl(sock, _SIOCGIFNETMASK, request)[20:24]
            except OSError:
                continue
            network = bytes(one & other for one, other in zip(address, mask))
            cards[name] = {
                "address": socket.inet_ntoa(address),
                "network": f"{socket.inet_ntoa(network)}/{bin(int.from_bytes(mask, 'big')).count('1')}",
                "mtu": _number(name, "mtu"),
                "speed": _number(name, "speed"),
                "errors": _number(name, "statistics/rx_errors"),
                "packets": _number(name, "statistics/rx_packets"),
            }
    return cards


def _number(card: str, what: str) -> int:
    text = read(f"/sys/class/net/{card}/{what}")
    return int(text) if text.isdigit() else -1


def hardware_addresses(ask: Question) -> list[str]:
    """Return the hardware addresses of real cards; virtual ones may be alike on many hosts."""
    found = [read(f"{os.path.dirname(path)}/address") for path in sorted(glob.glob("/sys/class/net/*/device"))]
    return [address for address in found if address.strip("0:")]


def rdma(ask: Question) -> dict[str, Any]:
    """Return the InfiniBand ports, and whether programs and NCCL can use them."""
    ports: list[dict[str, str]] = []
    for folder in sorted(glob.glob("/sys/class/infiniband/*/ports/*")):
        device = folder.split("/")[4]
        driver = os.path.basename(os.path.realpath(f"/sys/class/infiniband/{device}/device/driver"))
        state = read(f"{folder}/state").partition(":")[2].strip().lower()
        ports.append({"name": f"{device}:{os.path.basename(folder)}", "state": state, "driver": driver})
    if not ports:
        return {"ports": []}
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return {
        "ports": ports,
        "verbs": _has_verbs(),
        "plugin": any(glob.glob(f"{folder}/libnccl-net*.so*") for folder in (*folders, *_PLUGIN_FOLDERS)),
        "devices": len(glob.glob("/dev/infiniband/uverbs*")),
    }


def _has_verbs() -> bool:
    import ctypes  # only hosts with InfiniBand come here

    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return False
    return True

"""Which network interface gloo is told to use, where it would choose the wrong one by itself.

gloo offers the other ranks the address that this host's own name stands for. On Debian and Ubuntu that is 127.0.1.1,
and the ranks of other hosts call themselves when they dial it.
"""

from __future__ import annotations

import os
import socket
import sys
from ipaddress import ip_address

VARIABLE = "GLOO_SOCKET_IFNAME"


def point_gloo_at(addresses: tuple[str, ...]) -> None:
    """Name the interface with the first of these addresses of this host, unless gloo finds a good one itself."""
    if os.environ.get(VARIABLE) or not _name_misleads():
        return
    name = next((name for address in addresses if is_outward(address) and (name := _interface_of(address))), None)
    if name:
        os.environ[VARIABLE] = name


def address_toward(host: str) -> str:
    """The address of this host on the way to another, or an empty string; nothing is sent."""
    try:
        found = socket.getaddrinfo(host, 9, family=socket.AF_INET, type=socket.SOCK_DGRAM)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(found[0][4])
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return ""


def is_outward(address: str) -> bool:
    """Whether this is an address, and one that other hosts could dial."""
    return bool(address) and not ip_address(address).is_loopback


def _name_misleads() -> bool:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return True
    return not is_outward(str(found[0][4][0]).partition("%")[0])


def _interface_of(address: str) -> str | None:
    if sys.platform != "linux":
        return None
    from muster.shared.machine import interfaces

    return next((found["name"] for found in interfaces() if address in found["addresses"]), None)

"""gloo: the network interface it is to use, and its threads, which must rest before the interpreter ends.

By itself gloo offers the other ranks the address that this host's own name stands for. On Debian and Ubuntu that is
127.0.1.1, and the ranks of other hosts call themselves when they dial it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from ipaddress import ip_address

VARIABLE = "GLOO_SOCKET_IFNAME"

THREADS = ("gloo_tcp_loop", "pt_gloo_runloop")
"""What torch 2.13 calls those that carry out collectives."""


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


def wait_until_at_rest(limit: float) -> None:
    """Return when none of gloo's threads has anything left to do, at the latest after `limit` seconds.

    A collective that is over, or has just failed, is dropped by such a thread, for which it takes the GIL. Where the
    interpreter is about to end by then, that ends the process with SIGABRT, whatever its exit code was to be (Python
    below 3.14; seen in three of ten failing ranks on a busy machine).
    """
    give_up = time.monotonic() + limit
    seen = _times_run()
    while time.monotonic() < give_up:
        time.sleep(0.005)  # gives them the GIL
        before, seen = seen, _times_run()
        if seen is not None and seen == before:
            return


def _times_run() -> dict[str, str] | None:
    """How often each thread has run, where all of them sleep; a thread that wants to run counts as awake."""
    times: dict[str, str] = {}
    try:
        for thread in os.listdir("/proc/self/task"):
            if _read(thread, "comm").strip() not in THREADS:
                continue
            state = _read(thread, "stat").rpartition(")")[2].split()[0]
            if state != "S":
                return None
            times[thread] = _read(thread, "schedstat").split()[2]
    except OSError:  # no /proc, no such figures, or a thread that has just ended
        return None
    return times


def _read(thread: str, file: str) -> str:
    with open(f"/proc/self/task/{thread}/{file}") as stream:
        return stream.read()

"""gloo: sets its network interface, and waits for its threads before the interpreter exits.

By default gloo offers the other ranks the address that this host's own name resolves to. On Debian and Ubuntu that is
127.0.1.1, with which the ranks of other hosts would connect to themselves.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from ipaddress import ip_address

VARIABLE = "GLOO_SOCKET_IFNAME"

THREADS = ("gloo_tcp_loop", "pt_gloo_runloop")
"""Names of the threads that run collectives in torch 2.13."""


def point_gloo_at(addresses: tuple[str, ...]) -> None:
    """Select the interface with the first of these addresses of this host, unless gloo's default is fine."""
    if os.environ.get(VARIABLE) or not _name_misleads():
        return
    name = next((name for address in addresses if is_outward(address) and (name := _interface_of(address))), None)
    if name:
        os.environ[VARIABLE] = name


def address_toward(host: str) -> str:
    """This host's address on the route to another host, or an empty string; sends nothing."""
    try:
        found = socket.getaddrinfo(host, 9, family=socket.AF_INET, type=socket.SOCK_DGRAM)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(found[0][4])
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return ""


def is_outward(address: str) -> bool:
    """Whether this is an address that other hosts could connect to."""
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
    """Wait until gloo's threads are idle, for at most `limit` seconds.

    Such a thread releases a finished or failed collective, for which it needs the GIL. If the interpreter is shutting
    down by then, the process dies with SIGABRT, whatever its exit code was (Python before 3.14; observed in three of
    ten failing ranks on a busy machine).
    """
    give_up = time.monotonic() + limit
    seen = _times_run()
    while time.monotonic() < give_up:
        time.sleep(0.005)  # releases the GIL
        before, seen = seen, _times_run()
        if seen is not None and seen == before:
            return


def _times_run() -> dict[str, str] | None:
    """How often each thread has run, if all are sleeping; None if one is running or runnable."""
    times: dict[str, str] = {}
    try:
        for thread in os.listdir("/proc/self/task"):
            if _read(thread, "comm").strip() not in THREADS:
                continue
            state = _read(thread, "stat").rpartition(")")[2].split()[0]
            if state != "S":
                return None
            times[thread] = _read(thread, "schedstat").split()[2]
    except OSError:  # no /proc, no such counters, or a thread has just ended
        return None
    return times


def _read(thread: str, file: str) -> str:
    with open(f"/proc/self/task/{thread}/{file}") as stream:
        return stream.read()

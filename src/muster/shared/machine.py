"""Facts about this host that the plan needs, read within milliseconds and without importing torch."""

from __future__ import annotations

import fcntl
import os
import sys
import time

from . import batch_systems
from . import light_socket as socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .host_state import Facts, Interface

_SIOCGIFADDR = 0x8915
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 1
_IFF_LOOPBACK = 8


def facts() -> Facts:
    """The facts in the agent's first message: the Python, torch, CPUs, GPUs and interfaces of this host."""
    return {
        "time": time.time(),
        "python": sys.executable,
        "version": sys.version_info[:2],
        "torch": torch_version(sys.path),
        "cpus": cpu_count(os.environ),
        "gpus": gpu_count(os.environ),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "omp": users_threads(os.environ),
        "interfaces": interfaces(),
    }


def torch_version(path: list[str]) -> str | None:
    """The version of torch that `import torch` would load, read from its version.py; None if there is none."""
    for folder in path:
        try:
            with open(os.path.join(folder or ".", "torch", "version.py")) as file:
                for line in file:
                    if line.startswith("__version__"):
                        return line.split("=")[1].strip().strip("'\"")
        except OSError:
            continue
    return None


def cpu_count(env: Mapping[str, str]) -> int:
    """The number of CPUs for this job on this host; also limited by schedulers that do not bind processes."""
    given = batch_systems.cpus_given(env)
    bound = len(os.sched_getaffinity(0))
    return min(bound, int(given)) if given.isdigit() and int(given) > 0 else bound


def users_threads(env: Mapping[str, str]) -> str | None:
    """OMP_NUM_THREADS if the user set it; a batch system may set it to CPUs that several ranks share."""
    return None if batch_systems.sets_threads(env) else env.get("OMP_NUM_THREADS")


def gpu_count(env: Mapping[str, str], root: str = "/") -> int:
    """The number of GPUs that a process on this host would see, without using CUDA."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    devices = gpu_devices(root)
    try:
        gpus = len(os.listdir(root + "proc/driver/nvidia/gpus"))
    except OSError:
        return devices  # some containers hide it
    # A container sees all GPUs of its host there, but can use only those whose devices it has. On a host, the devices
    # may be missing until the driver is first used.
    return min(gpus, devices) if in_container(root) else gpus


def gpu_devices(root: str = "/") -> int:
    """The number of NVIDIA GPUs of this host, according to its device files."""
    return len([name for name in os.listdir(root + "dev") if name.startswith("nvidia") and name[6:].isdigit()])


def in_container(root: str = "/") -> bool:
    """Whether this is a podman or docker container."""
    return any(os.path.exists(root + sign) for sign in ("run/.containerenv", ".dockerenv"))


def interfaces() -> list[Interface]:
    """All network interfaces that are up, with their addresses; loopback is marked."""
    found: list[Interface] = []
    by_name_v6 = _ipv6_addresses()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = name.encode()[:15].ljust(256, b"\0")
            try:
                flags = int.from_bytes(fcntl.ioctl(probe, _SIOCGIFFLAGS, request)[16:18], sys.byteorder)
            except OSError:
                continue
            if not flags & _IFF_UP:
                continue
            addresses: list[str] = []
            try:
                addresses.append(socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24]))
            except OSError:
                pass  # no IPv4 on this one
            addresses += by_name_v6.get(name, [])
            found.append({"name": name, "addresses": addresses, "loopback": bool(flags & _IFF_LOOPBACK)})
    return found


def _ipv6_addresses() -> dict[str, list[str]]:
    """Global IPv6 addresses by interface; link-local ones need a zone and do not work as MASTER_ADDR."""
    found: dict[str, list[str]] = {}
    for line in read_text("/proc/net/if_inet6").splitlines():
        digits, _, _, scope, _, name = line.split()
        if scope == "00":
            found.setdefault(name, []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def memory_kills() -> tuple[int | None, int | None]:
    """The number of OOM kills in this cgroup and on the whole host; None if unknown."""
    in_all = counted("/proc/vmstat", "oom_kill")
    for folder in control_groups("memory"):
        for name in ("memory.events", "memory.oom_control"):  # version 2 and 1
            count = counted(os.path.join(folder, name), "oom_kill")
            if count is not None:
                return count, in_all
    return None, in_all


def control_groups(controller: str, proc: str = "/proc/self") -> list[str]:
    """The directories of the cgroups that limit this process's `memory` or `cpu`: its own first, then its parents."""
    own = [line.split(":", 2) for line in read_text(f"{proc}/cgroup").splitlines()]
    mounts = [line.split(" - ") for line in read_text(f"{proc}/mountinfo").splitlines() if " - cgroup" in line]
    for kind, name in (("cgroup", controller), ("cgroup2", "")):  # version 1 if it has the controller, otherwise 2
        path = next((path for _, controllers, path in own if name in controllers.split(",")), None)
        for before, after in mounts:
            root, point = before.split()[3:5]
            has_it = kind == "cgroup2" or controller in after.split()[-1].split(",")
            if path is None or after.split()[0] != kind or not has_it:
                continue
            below = path[len(root.rstrip("/")) :] if path.startswith(root) else ""  # a container may not see it all
            parts = [part for part in below.split("/") if part not in ("", "..")]
            return [os.path.join(point, *parts[:length]) for length in range(len(parts), -1, -1)]
    return []


def counted(path: str, name: str) -> int | None:
    """The number after a name in a file of the kernel; None if it is missing."""
    return next((int(line.split()[1]) for line in read_text(path).splitlines() if line.startswith(name + " ")), None)


def cpu_quota(folder: str) -> float | None:
    """The CPU quota of a cgroup as a number of CPUs; None if there is no limit."""
    limit, period = read_text(f"{folder}/cpu.max").split() or [
        read_text(f"{folder}/cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    ]
    return int(limit) / int(period) if limit.isdigit() else None


def hosts_entries(name: str) -> list[list[str]]:
    """The entries of /etc/hosts that contain a name; each is an address and its names."""
    entries = [line.partition("#")[0].split() for line in read_text("/etc/hosts").splitlines()]
    return [words for words in entries if name in words[1:] and not words[0].startswith("::ffff:")]


def read_text(path: str) -> str:
    """The text of a file, with invalid UTF-8 replaced, because the kernel truncates names; empty if unreadable."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""

"""The operating system of this host, the CPUs and limits of its ranks, and their environment variables."""

from __future__ import annotations

import glob
import os
import pwd
import re
import resource
import sys

from ...shared.machine import control_groups, counted, cpu_quota
from .reading import find_program, parent, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    from ...shared.requests import Question
else:
    from ...shared.protocol import TypedDict

_LIBRARIES = ("NCCL_", "GLOO_", "UCX_", "FI_", "TORCH_NCCL_", "OMP_", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES")
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_PREFIXES = _LIBRARIES + LAUNCHERS
"""Name prefixes of environment variables that affect a job."""

_NAMES_OF_FILES = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN")


class System(TypedDict):
    """User, Python, CPUs, memory in bytes and operating system."""

    uid: int
    python: str
    cpus: int | None
    kernel: str
    shell: str
    memory: int
    os: str


class Cpus(TypedDict):
    """Numbers of CPUs, the CPU quota in CPUs, and the ancestor (process id, name) that is bound to the allowed ones."""

    allowed: int
    online: int
    quota: float | None
    binder: tuple[int, str]
    everything: bool


class Limit(TypedDict):
    """A limit (-1 if none), the ancestor (process id, name) that set it, or the file that sets it with `ulimit`."""

    soft: int
    hard: int
    by: tuple[int, str]
    file: str
    flag: str


class Variables(TypedDict):
    """Environment variables, the file that sets each, those that refer to a missing file, and InfiniBand adapters."""

    env: dict[str, str]
    sources: dict[str, str]
    gone: dict[str, str]
    adapters: list[str]


def system(ask: Question) -> System:
    """Return user, Python, CPUs, memory and operating system."""
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        shell = ""  # a user id without an account, common in containers
    names = [line.partition("=") for line in read("/etc/os-release").splitlines()]
    return {
        "uid": os.getuid(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
        "shell": shell,
        "memory": (counted("/proc/meminfo", "MemTotal:") or 0) * 1024,
        "os": next((value.strip().strip('"') for name, _, value in names if name == "PRETTY_NAME"), ""),
    }


def clock(ask: Question) -> str:
    """Return the program that can set the clock."""
    return next((name for name in ("chronyc", "timedatectl", "ntpdate") if find_program(name)), "")


def cpus(ask: Question) -> Cpus:
    """Return the allowed CPUs, the ancestor process that is bound to them, and the CPU quota."""
    allowed = os.sched_getaffinity(0)
    pid = binder = os.getpid()
    try:
        while pid > 1 and os.sched_getaffinity(pid) <= allowed:
            binder, pid = pid, parent(pid)
        comm = read(f"/proc/{binder}/comm")
        # If even process 1 is bound to them, the container was started with these CPUs.
        everything = os.sched_getaffinity(1) <= allowed
    except OSError:
        comm, everything = "", False
    quotas = map(cpu_quota, control_groups("cpu"))
    return {
        "allowed": len(allowed),
        "online": os.cpu_count() or len(allowed),
        "quota": min((quota for quota in quotas if quota is not None), default=None),
        "binder": (binder, comm),
        "everything": everything,
    }


def limits(ask: Question) -> dict[str, Limit]:
    """Return each limit, and the oldest ancestor process that has it."""
    answer: dict[str, Limit] = {}
    for name, number, title, flag in (
        ("memlock", resource.RLIMIT_MEMLOCK, "Max locked memory", "-l"),
        ("nofile", resource.RLIMIT_NOFILE, "Max open files", "-n"),
    ):
        soft, hard = (-1 if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(number))
        lowered = (
            path
            for path in ("~/.bashrc", "~/.profile", "~/.zshenv", "/etc/bash.bashrc")
            if re.search(rf"^\s*ulimit\s+(-[SH]\s*)?{flag}\s", read(path) + "\n", re.MULTILINE)
        )
        by = _who_set(title, "unlimited" if soft < 0 else str(soft))
        answer[name] = {"soft": soft, "hard": hard, "by": by, "file": next(lowered, ""), "flag": flag}
    return answer


def _who_set(title: str, value: str) -> tuple[int, str]:
    """Process id and name of the oldest ancestor with this soft limit."""
    found = (0, "")
    pid = parent(os.getppid())  # skip the agent, our parent, which has raised its own limit on open files
    while pid > 0 and re.search(rf"^{title} +{value} ", read(f"/proc/{pid}/limits"), re.MULTILINE):
        found = (pid, read(f"/proc/{pid}/comm"))
        pid = parent(pid)
    return found


def variables(ask: Question) -> Variables:
    """Return the environment variables of a rank, the file that sets each, and paths in them that do not exist."""
    env = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    files = ["~/.bashrc", "~/.bash_profile", "~/.profile", "~/.zshenv", "~/.cshrc", "/etc/environment"]
    files += ["/etc/bash.bashrc", *sorted(glob.glob("/etc/profile.d/*.sh"))]
    files += ["~/.ssh/environment", "~/.nccl.conf", "/etc/nccl.conf"]
    sources: dict[str, str] = {}
    for path in files:
        for line in read(path).splitlines():
            match = re.match(r"\s*(?:export\s+|setenv\s+)?([A-Z][A-Z0-9_]*)[= ]\s*['\"]?([^'\"#\n]*)", line)
            if match and match.group(1).startswith(_PREFIXES):
                sources.setdefault(match.group(1), path)
                if path.endswith("nccl.conf"):
                    env.setdefault(match.group(1), match.group(2).strip())
    paths = {name: env[name] for name in _NAMES_OF_FILES if "/" in env.get(name, "")}
    return {
        "env": env,
        "sources": sources,
        "gone": {name: path for name, path in paths.items() if not os.path.exists(path)},
        "adapters": sorted(map(os.path.basename, glob.glob("/sys/class/infiniband/*"))),
    }


def profile(ask: Question) -> list[str]:
    """Return the user's shell startup files that exist."""
    files = ("~/.bashrc", "~/.profile", "~/.zshenv", "~/.cshrc")
    return [path for path in files if os.path.exists(os.path.expanduser(path))]

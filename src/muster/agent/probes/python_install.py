"""The Python and torch installations of this host, determined from files without importing them."""

from __future__ import annotations

import glob
import os
import re
import sys
import zlib

from .reading import read, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    from ...shared.requests import Question
else:
    from ...shared.protocol import TypedDict

_CONDAS = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "/opt/conda")
_PREFIXES = (
    *("~/.venv", "~/venv", "~/*/.venv", "~/*/venv"),
    *(place for conda in _CONDAS for place in (conda, f"{conda}/envs/*")),
    *("/opt/*", "~/.pyenv/versions/*", "/usr/local", ".venv", "venv"),
)
"""Common install locations of Python."""

_MOST_OTHERS = 8


class Python(TypedDict):
    """The Python in use, whether it has torch and is externally managed, and other Pythons that have torch."""

    executable: str
    version: str
    torch: bool
    managed: bool
    others: list[str]


class Torch(TypedDict):
    """A build of torch: versions, a checksum of its files, size and build id of its libraries, and the driver."""

    version: str
    cuda: str
    git: str
    record: int
    libraries: dict[str, tuple[int, str] | None]
    nccl: str
    stray_nccl: list[str]
    driver: str
    python: str


def python(ask: Question) -> Python:
    """Return the Python in use, and others that have torch."""
    has_torch = _torch_site() is not None
    found: list[str] = []
    if not has_torch:  # look for the Python of an interactive login, which may take a second
        shell = os.environ.get("SHELL", "/bin/sh")
        lines = run(shell, "-lic", "command -v python; command -v python3", timeout=2)[1].splitlines()
        found += [line for line in lines if line.startswith("/")]
    for prefix in _PREFIXES:
        found += sorted(glob.glob(os.path.join(os.path.expanduser(prefix), "bin", "python3")))
    others = [path for path in map(os.path.abspath, dict.fromkeys(found)) if _has_torch(path)]
    return {
        "executable": sys.executable,
        "version": ".".join(map(str, sys.version_info[:2])),
        "torch": has_torch,
        "managed": bool(glob.glob(os.path.join(sys.base_prefix, "lib", "python3*", "EXTERNALLY-MANAGED"))),
        "others": others[:_MOST_OTHERS],
    }


def _torch_site() -> str | None:
    """The directory from which `import torch` would load it."""
    return next((path for path in sys.path if os.path.exists(os.path.join(path, "torch", "version.py"))), None)


def _has_torch(executable: str) -> bool:
    prefix = os.path.dirname(os.path.dirname(executable))
    return bool(glob.glob(os.path.join(prefix, "lib", "python3*", "site-packages", "torch", "version.py")))


def torch(ask: Question) -> Torch | None:
    """Return what identifies this host's build of torch, or None if torch is not installed."""
    site = _torch_site()
    if site is None:
        return None
    text = read(os.path.join(site, "torch", "version.py"))
    words = dict(re.findall(r"^(\w+)(?:: [^=]*)? = ['\"]([^'\"]*)['\"]", text, re.MULTILINE))
    names = ("libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so", "libc10.so")
    libraries = {name: _identity(os.path.join(site, "torch", "lib", name)) for name in names}
    libraries["libnccl.so.2"] = _identity(os.path.join(site, "nvidia", "nccl", "lib", "libnccl.so.2"))
    nccl = re.findall(r"nvidia_nccl_\w+-([\d.]+)\.dist-info", " ".join(os.listdir(site)))
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    strays = [path for path in (os.path.join(folder, "libnccl.so.2") for folder in folders) if os.path.exists(path)]
    driver = re.findall(r"Kernel Module\D*([\d.]+)", read("/proc/driver/nvidia/version"))
    return {
        "version": words.get("__version__", ""),
        "cuda": words.get("cuda") or words.get("hip", ""),
        "git": words.get("git_version", ""),
        "record": _record(site),
        "libraries": libraries,
        "nccl": nccl[0] if nccl else "",
        "stray_nccl": [path for path in strays if _identity(path) != libraries["libnccl.so.2"]],
        "driver": driver[0] if driver else "",
        "python": sys.executable,
    }


def _identity(path: str) -> tuple[int, str] | None:
    """Size and build id of a library; the build id is in its first page, so gigabytes need not be read."""
    try:
        with open(path, "rb") as file:
            head = file.read(8192)
            size = file.seek(0, 2)
    except OSError:
        return None
    mark = head.find(b"\x14\0\0\0\x03\0\0\0GNU\0")
    return size, head[mark + 12 : mark + 32].hex() if mark >= 0 else ""


def _record(site: str) -> int:
    """A checksum of the installed files, excluding what the installer adds: bytecode, metadata and scripts."""
    record = 0
    for path in glob.glob(os.path.join(site, "torch-*.dist-info", "RECORD")):
        with open(path, "rb") as file:
            for line in file:
                if b".pyc," not in line and b".dist-info/" not in line and not line.startswith(b"../"):
                    record ^= zlib.crc32(line)
    return record

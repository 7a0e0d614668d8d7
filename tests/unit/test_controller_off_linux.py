"""A controller may run on macOS: what it imports must not need Linux before an agent uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(60)

IMPORT = """
import _ctypes, _signal, _socket, os, select, signal, socket, sys

for module, names in {
    signal: "SIGRTMIN SIGRTMAX SIGPWR",
    _signal: "SIGRTMIN SIGRTMAX SIGPWR",
    select: "epoll EPOLLIN EPOLLOUT EPOLLHUP EPOLLERR",
    socket: "SO_PEERCRED",
    _socket: "SO_PEERCRED",
    os: "memfd_create pidfd_open sched_getaffinity",
}.items():
    for name in names.split():
        vars(module).pop(name, None)

def dlsym(library, name, find=_ctypes.dlsym):
    if name in ("prctl", "tgkill"):
        raise OSError(f"dlsym: {name} not found")
    return find(library, name)

_ctypes.dlsym = dlsym
sys.platform = "darwin"
import muster.cli.run, muster.controller.controller
"""


def test_a_controller_imports_nothing_that_only_linux_has():
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr

"""Helpers of the probes: reading kernel files and the output of programs."""

from __future__ import annotations

import os

from ...shared.machine import read_text
from ...shared.processes import stat


def read(path: str) -> str:
    """The stripped text of a file, or an empty string if it cannot be read."""
    return read_text(os.path.expanduser(path)).strip()


def run(*argv: str, timeout: float | None = None) -> tuple[int, str]:
    """Exit code and output of a program, or -1 and an empty string if it does not run or times out."""
    import subprocess  # rarely needed on hosts without a GPU

    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout
        )
    except (OSError, subprocess.TimeoutExpired):
        return -1, ""
    return done.returncode, done.stdout.decode(errors="replace").strip()


def find_program(name: str, *more: str) -> str:
    """The path of a program in PATH or additional directories, or an empty string."""
    paths = (f"{folder}/{name}" for folder in (*os.environ.get("PATH", "").split(":"), *more))
    return next((path for path in paths if os.access(path, os.X_OK)), "")


def parent(pid: int) -> int:
    """The parent of a process, or 0 if it is not visible."""
    fields = stat(pid)[1]
    return int(fields[1]) if fields else 0

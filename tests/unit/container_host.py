"""A machine with some container programs that only say how they were called, for the tests of containers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.engines.container.container import Container

IMAGE = "docker.io/pytorch/pytorch:2.13"
AGENT = ("python3", "-c", 'import sys;exec(open(0,"rb",0,closefd=False).readline())')

# Prints how it was called, with one write, and its environment; variables control its behavior.
PROGRAM = """#!/bin/sh
printf "%s\\0" "${0##*/}" "$@" "
" >>"$CALLS"
case "$1 $2" in
--version*) echo "${FAKE_VERSION:-${0##*/} version 4.3.1}" ;;
info*) echo "${FAKE_SECURITY:-[name=seccomp,profile=default]}" ;;
"image inspect") exit "${FAKE_MISSING:-0}" ;;
pull*)
    echo "Copying blob 1"
    [ "$FAKE_SECONDS" ] && exec sleep "$FAKE_SECONDS"
    printf "%s" "$FAKE_PULL_SAYS" >&2
    exit "${FAKE_PULL_CODE:-0}" ;;
run*|exec*)
    env -0 >"$CALLS.env"
    cat
    printf "%s" "$FAKE_SAYS" >&2
    exit "${FAKE_CODE:-0}" ;;
esac
"""

TOOLS = (
    *(
        "awk",
        "cat",
        "cut",
        "env",
        "getent",
        "grep",
        "id",
        "mkdir",
        "mkfifo",
        "mktemp",
        "printenv",
        "rm",
        "sed",
        "setsid",
    ),
    *("sh", "sleep", "uname"),
)


def installed(*shells: tuple[str, ...]) -> list[Any]:
    """Those of this machine; sh is mostly another name of one of the others."""
    paths = {shell: os.path.realpath(str(shutil.which(shell[0]))) for shell in shells if shutil.which(shell[0])}
    return [
        pytest.param(shell, id=" ".join(shell))
        for number, (shell, path) in enumerate(paths.items())
        if path not in list(paths.values())[:number]
    ]


INSTALLED = installed(("dash",), ("bash", "--posix"), ("busybox", "sh"), ("sh",))
LOGIN = installed(("bash",), ("dash",), ("zsh",), ("tcsh",), ("csh",), ("fish",), ("sh",))


class Host:
    """A machine with some container programs, and no other."""

    def __init__(self, folder: Path, *programs: str) -> None:
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        self.cwd = folder / "work"
        self.home = folder / "home"
        for made in (self.bin, self.cwd, self.home):
            made.mkdir()
        for tool in TOOLS:
            self.bin.joinpath(tool).symlink_to(str(shutil.which(tool)))
        for program in programs:
            path = self.bin / program
            path.write_text(PROGRAM)
            path.chmod(0o755)

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a process on this machine."""
        return {"PATH": str(self.bin), "HOME": str(self.home), "CALLS": str(self.calls), **more}

    def run(
        self, box: Container, shell: Sequence[str] = ("sh",), stdin: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the script as a transport does."""
        return subprocess.run(
            command(shell, box), input=stdin, env=self.env(**env), capture_output=True, text=True, timeout=50
        )

    def called(self) -> list[list[str]]:
        """How the programs were called."""
        text = self.calls.read_text() if self.calls.exists() else ""
        return [call.split("\0")[:-1] for call in text.split("\n\0")[:-1]]

    def argv(self) -> list[str]:
        """The last command that the program was given."""
        return self.called()[-1][1:]

    def inside(self) -> dict[str, str]:
        """The environment it had."""
        return dict(line.split("=", 1) for line in Path(f"{self.calls}.env").read_text().split("\0")[:-1])


def command(shell: Sequence[str], box: Container) -> list[str]:
    """The command line of a transport, for this shell."""
    argv = box.run(AGENT)
    assert argv[:2] == ("/bin/sh", "-c")
    return [str(shutil.which(shell[0])), *shell[1:], *argv[1:]]


def box(cwd: str | Path = "", **fields: Any) -> Container:
    return Container(image=IMAGE, cwd=str(cwd), folder="/nowhere/jobs/job-1", **fields)


def started(host: Host, box: Container, shell: Sequence[str] = ("sh",), **env: str) -> list[tuple[str, str]]:
    """Run the script, which must succeed, and return the options of the command line it built."""
    done = host.run(box, shell, **env)
    assert done.returncode == 0, done.stderr
    return options(host.argv())


def options(argv: Sequence[str]) -> list[tuple[str, str]]:
    """The options of a command line with their values, up to the image."""
    words = list(argv[1 : argv.index(IMAGE)])
    alone = {"--rm", "--interactive", "--cleanenv", "--nv"}
    found: list[tuple[str, str]] = []
    while words:
        option = words.pop(0)
        takes = option not in alone and "=" not in option and not (option == "--pid" and argv[0] == "exec")
        found.append((option, words.pop(0) if takes else ""))
    return found

"""Runs a command of Muster in this process with whatever a user may type; nothing is ever started."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest
from in_process import printed

from muster.cli import main

LIMIT = 10.0
"""Seconds within which each input must be refused."""

LONGEST = 12
"""Lines of an error with its hint."""


class Started(BaseException):
    """The command accepted its input: it starts a process or opens a connection."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input, and what must come of it."""

    argv: tuple[str, ...]
    code: int | None = None
    """The exit code; None if this input may also be accepted."""
    says: str = ""
    """A regular expression for the error."""
    env: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a command ended."""

    code: int | None
    """The exit code; None if it started something."""
    out: str
    err: str
    seconds: float


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a script, a home without jobs, and nothing of a scheduler.

    There are few variables: each run compares all of them with those that go to other hosts.
    """
    for name in set(os.environ) - {"PATH", "LANG", "TERM", "TMPDIR", "XDG_CONFIG_HOME"}:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("train.py").write_text("print(1)\n")
    return folder


def _started(*args: Any, **settings: Any) -> NoReturn:
    words: Any = args[1] if len(args) > 1 else None
    if isinstance(words, list | tuple) and f"{words[0]}".endswith("qstat"):
        raise FileNotFoundError(2, "No such file or directory", "qstat")  # it only asks, nothing starts
    raise Started


def _never_awaited(coroutine: Any, **settings: Any) -> NoReturn:
    coroutine.close()
    raise Started


STARTERS: list[tuple[Any, str, Any]] = [
    (subprocess.Popen, "__init__", _started),
    (asyncio, "run", _never_awaited),
    *((os, name, _started) for name in ("fork", "execv", "execve", "execvp", "execvpe")),
    *((socket.socket, name, _started) for name in ("connect", "bind")),
]


@contextmanager
def nothing_starts() -> Generator[None]:
    """Raise Started instead of starting a process or connecting."""
    with pytest.MonkeyPatch.context() as patched:
        for owner, name, instead in STARTERS:
            patched.setattr(owner, name, instead)
        yield


def invoke(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Done:
    """Run `muster ARGV` where nothing can start."""
    with nothing_starts():
        return _invoke(argv, env)


def _invoke(argv: Sequence[str], env: Mapping[str, str] | None) -> Done:
    begin = time.monotonic()
    code: int | None
    # patch.dict() sets every variable again, which takes longer than most errors do.
    with patch.dict(os.environ, env) if env else nullcontext(), printed() as texts:
        try:
            code = main(list(argv))
        except Started:
            code = None
        except SystemExit as exit:
            code = int(exit.code or 0)
    seconds = time.monotonic() - begin
    return Done(code=code, out=texts.out, err=texts.err, seconds=seconds)


def problem_with(done: Done, case: Case) -> str:
    """Return what is wrong with how a command ended; empty if nothing is."""
    lines = done.err.splitlines()
    if "Traceback" in done.err or "internal error" in done.err:
        return "a traceback"
    if done.seconds > LIMIT:
        return f"took {done.seconds:.1f} s"
    if case.code is not None and done.code != case.code:
        return f"exit code {done.code} instead of {case.code}"
    if done.code in (None, 0):
        return ""
    if not done.err.startswith("error: "):
        return "no error"
    if len(lines) > LONGEST or max(map(len, lines)) > 2000:
        return f"{len(lines)} lines, the longest has {max(map(len, lines))} characters"
    if any(not char.isprintable() and char != "\n" for char in done.err):
        return "control characters"
    if case.says and not re.search(case.says, done.err):
        return f"does not say {case.says!r}"
    return ""


def problems(cases: Sequence[Case], leftovers: Path | None = None) -> list[str]:
    """Run all cases and return what is wrong, one text per case."""
    with nothing_starts():  # once for all, because that takes longer than many a case
        return _problems(cases, leftovers)


def _problems(cases: Sequence[Case], leftovers: Path | None) -> list[str]:
    found: list[str] = []
    for case in cases:
        try:
            done = _invoke(case.argv, case.env)
            wrong = problem_with(done, case)
            end = f"code {done.code}: {done.err[-600:]}"
        except Exception as error:
            wrong, end = "an exception", f"{type(error).__name__}: {error}"
        if not wrong and leftovers is not None and any(leftovers.iterdir()):
            wrong = f"left behind: {sorted(path.name for path in leftovers.iterdir())}"
        if wrong:
            typed = " ".join(
                word if len(word) < 60 else f"{word[:50]}... ({len(word)})" for word in map(ascii, case.argv)
            )
            found.append(f"muster {typed} {dict(case.env or {})!a:.300}: {wrong}\n  {end}")
    return found

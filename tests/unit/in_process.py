"""Runs commands of Muster in this process: another one would spend most of its time on imports."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from muster.cli import main


@dataclass
class Printed:
    """What was printed, once it is over."""

    out: str = ""
    err: str = ""


@contextmanager
def printed() -> Generator[Printed]:
    """Catch what this process prints."""
    texts = Printed()
    raw_out, raw_err = io.BytesIO(), io.BytesIO()
    out = io.TextIOWrapper(raw_out, "utf-8", write_through=True)
    err = io.TextIOWrapper(raw_err, "utf-8", "backslashreplace", write_through=True)
    with patch.object(sys, "stdout", out), patch.object(sys, "stderr", err):
        try:
            yield texts
        finally:
            texts.out, texts.err = (raw.getvalue().decode("utf-8", "replace") for raw in (raw_out, raw_err))


def muster(*argv: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """`muster ARGV` in a directory, with exactly this environment."""
    before = os.getcwd()
    os.chdir(cwd)
    try:
        with patch.dict(os.environ, env, clear=True), printed() as texts:
            try:
                code = main(list(argv))
            except SystemExit as exit:
                code = int(exit.code or 0)
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(argv, code, texts.out, texts.err)

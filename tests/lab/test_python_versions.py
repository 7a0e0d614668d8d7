"""Hosts with Python 3.9 and newer, and Muster itself on 3.10 and newer: every version that this machine has."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from launching import PLAIN, run_in
from waiting import patience

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
SOURCES = Path(__file__).parents[2] / "src"

WHO = """
import os, sys
print("Python %d.%d" % sys.version_info[:2], "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
print(input(), file=sys.stderr) if os.environ["RANK"] == "0" else None
if sys.argv[1:]:
    raise ValueError("bad sample")
"""


def interpreter(version: str) -> str:
    """The interpreter of a version, on the PATH or from pyenv."""
    found = sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python{version}")))
    path = found[-1] if found else shutil.which(f"python{version}")
    if path is None:
        pytest.skip(f"python{version} is not installed")
    return path


@pytest.mark.parametrize("version", VERSIONS)
def test_hosts_run_their_ranks_with_any_supported_python(cluster: Lab, shared: Path, version: str) -> None:
    (shared / "who.py").write_text(WHO)
    options = ("--no-zygote", "--python", interpreter(version), "-H", "h2:1,h3:1")
    done = run_in(cluster, "h1", shared, *options, "who.py")
    assert done.code == 1, done.said  # nothing was typed
    assert "EOFError" in done.err, done.said
    assert done.lines(1) == [f"Python {version} rank 1 of 2"], done.said


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_muster_runs_with_any_supported_python(tmp_path: Path, version: str) -> None:
    (tmp_path / "who.py").write_text(WHO)
    for arguments, code in ((), 0), (("fail",), 1):
        done = subprocess.run(
            [interpreter(version), "-m", "muster", "run", "--no-zygote", "--nproc", "2", "who.py", *arguments],
            cwd=tmp_path,
            env={**PLAIN, "PYTHONPATH": str(SOURCES), "XDG_STATE_HOME": str(tmp_path / "state")},
            input="typed\n",
            capture_output=True,
            text=True,
            timeout=patience(60),
        )
        assert done.returncode == code, done.stderr
        assert sorted(line.partition("] ")[2] for line in done.stdout.splitlines()) == [
            f"Python {version} rank {rank} of 2" for rank in (0, 1)
        ], done.stdout + done.stderr
        assert "] typed" in done.stderr
        assert ("ValueError: bad sample (who.py:6)" in done.stderr) == bool(code), done.stderr

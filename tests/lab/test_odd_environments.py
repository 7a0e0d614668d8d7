"""Muster in odd environments: closed streams, few descriptors, no home, a full disk, a deleted working directory."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from launching import MUSTER, PLAIN
from waiting import patience

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

RUN = f"{MUSTER} run --nproc 1 --no-zygote --no-check train.py"
"""A job without torch."""

INSIDE = "unshare -m bash -c"
"""Runs commands with mounts of their own."""


def shell(folder: Path, line: str, **env: str) -> tuple[int, str, str]:
    """Run a line of shell; returns exit code, stdout and stderr."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**PLAIN, "XDG_STATE_HOME": str(folder / "state"), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=patience(100),
    )
    assert b"Traceback" not in done.stderr, done.stderr
    assert b"internal error" not in done.stderr, done.stderr
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("open('ran', 'a').write('x')\nprint('it ran')\n")
    return tmp_path


CLOSED = [" ".join(words) for words in product(("", "<&-"), (">&-", ""), ("2>&-", ""))][:-1]


def test_commands_work_with_closed_streams(work: Path):
    codes = {"ps": 0, "logs nosuch": 2, "check --nproc 0": 2, "lab status": None, "submit": 2, "run nosuch.py": 2}
    everything = "<&- >&- 2>&-"
    cases = [*product(["ps"], CLOSED), *product(codes, [everything])]
    for command, closed in cases:
        code, out, err = shell(work, f"{MUSTER} {command} {closed}")
        assert code in ((0, 1) if codes[command] is None else (codes[command],)), (command, closed, out, err)


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "<&-", ">&- 2>&-"])
def test_a_job_runs_with_closed_streams(work: Path, closed: str):
    assert shell(work, f"{RUN} {closed}")[0] == 0
    assert (work / "ran").read_text() == "x"


def test_few_descriptors_are_one_sentence_or_enough(work: Path):
    code, _, err = shell(work, f"ulimit -Sn 32; {RUN}")
    assert code == 0, err
    code, _, err = shell(work, f"ulimit -n 9; {RUN}")
    assert code == 125
    assert "open files" in err
    assert "ulimit -n" in err


def test_output_that_nobody_takes_does_not_change_the_end(work: Path):
    code, _, err = shell(work, f"{RUN} > /dev/full")
    assert (code, (work / "ran").read_text()) == (0, "x"), err
    assert shell(work, f"{MUSTER} ps > /dev/full")[::2] == (125, "error: the output: no space left on device\n")
    assert shell(work, f"{MUSTER} nosuch 2> /dev/full")[0] == 2
    code, out, err = shell(work, f"{MUSTER} recipes | head -0; echo ${{PIPESTATUS[0]}}")
    assert (out.strip() in ("0", "141"), err) == (True, ""), out


def test_a_state_directory_that_cannot_be_written_is_one_sentence(work: Path):
    for name in ("/proc", "/dev/full", "/dev/null/x"):
        code, _, err = shell(work, RUN, XDG_STATE_HOME=name)
        assert code == 125
        assert err.startswith("error: could not create the job directory"), err
        assert shell(work, f"{MUSTER} ps", XDG_STATE_HOME=name)[0] in (0, 125)
    assert not (work / "ran").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="needs mounts")
def test_a_full_or_read_only_disk_is_one_sentence(work: Path):
    for name in ("full", "locked"):
        (work / name).mkdir()
    full = f"mount -t tmpfs -o size=64k,mode=700 none {work}/full; head -c 64k /dev/zero > {work}/full/x"
    code, _, err = shell(work, f"{INSIDE} '{full}; {RUN}'", XDG_STATE_HOME=str(work / "full"))
    assert (code, err.startswith("error: could not write to "), "Traceback" in err) == (125, True, False), err
    read_only = f"mount -t tmpfs -o ro none {work}/locked"
    code, _, err = shell(work, f"{INSIDE} '{read_only}; {RUN}'", XDG_STATE_HOME=str(work / "locked"))
    assert (code, err.startswith("error: could not create the job directory")) == (125, True), err


@pytest.mark.skipif(os.getuid() != 0, reason="needs mounts")
@pytest.mark.skipif(sys.prefix.startswith("/tmp/"), reason="this Python itself is below /tmp")
def test_a_job_runs_without_tmp(work: Path):
    hidden = f"{INSIDE} 'mkdir -p /run/w; mount --bind {work} /run/w; mount -t tmpfs -o ro none /tmp; cd /run/w; {RUN}'"
    code, out, err = shell(work, hidden, XDG_STATE_HOME="/run/w/state")
    assert (code, "it ran" in out) == (0, True), err


def test_a_deleted_or_odd_working_directory(work: Path):
    gone = f"mkdir gone; cd gone; rmdir ../gone; {MUSTER}"
    code, _, err = shell(work, f"{gone} run train.py")
    assert code in (2, 125)
    assert "working directory" in err
    assert shell(work, f"{gone} ps")[0] == 0
    for name in ("a\nb", "\udcff"):
        folder = work / name
        folder.mkdir()
        (folder / "train.py").write_text("print('it ran')\n")
        code, out, err = shell(folder, RUN, XDG_STATE_HOME=str(work / "state"))
        assert (code, "it ran" in out) == (0, True), err
        assert shell(folder, f"{MUSTER} run --dry-run train.py", XDG_STATE_HOME=str(work / "state"))[0] == 0


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONWARNINGS": "error", "PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1"},
        {"LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        {"TMPDIR": "/nosuch", "HOME": "/nosuch", "TERM": "zork"},
    ],
    ids=["python", "locale", "directories"],
)
def test_a_job_runs_with_odd_variables(work: Path, env: dict[str, str]):
    (work / "é.py").write_text("print('it ran')\n")
    code, out, err = shell(work, RUN.replace("train.py", "é.py"), **env)
    assert (code, "it ran" in out) == (0, True), err
    assert shell(work, f"{MUSTER} ps", **env)[0] == 0
    assert shell(work, f"{MUSTER} run --dry-run é.py", **env)[0] == 0


@pytest.mark.parametrize("mask", ["000", "777"])
def test_a_job_runs_with_any_umask(work: Path, mask: str):
    code, out, err = shell(work, f"umask {mask}; {RUN}")
    assert (code, "it ran" in out) == (0, True), err
    modes = [
        path.stat().st_mode & 0o077 for path in (work / "state" / "muster", *(work / "state" / "muster").glob("jobs/*"))
    ]
    assert modes == [0] * len(modes)

"""The tests pass however they are started: `make test &`, `nohup make test`, with blocked signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import Job
from waiting import patience, wait_until

pytestmark = pytest.mark.timeout(180)

# Starts a program with SIGHUP blocked.
BLOCKED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["ctrl-c", "closed-terminal"])
def test_a_signal_ends_a_job_that_a_test_has_started(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "sleeps.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(1000)\n")
    with Job(tmp_path, "--no-zygote", "--nproc", "1", "sleeps.py") as job:
        wait_until("the rank", lambda: "up" in job.out, 60, lambda: job.err)
        job.process.send_signal(number)
        assert job.process.wait(patience(60)) == 128 + number, job.err


def test_programs_that_a_test_starts_ignore_and_block_no_signal() -> None:
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    fields = dict(line.split(":\t") for line in status.splitlines() if line.startswith(("SigIgn", "SigBlk")))
    ours = sum(1 << number - 1 for number in signal.valid_signals())  # 32 and 33 belong to the C library
    assert {name: int(mask, 16) & ours for name, mask in fields.items()} == {"SigIgn": 0, "SigBlk": 0}


def test_the_tests_of_this_file_pass_under_nohup_in_the_background(tmp_path: Path) -> None:
    ours = [
        f"{__file__}::{name}"
        for name in (
            "test_a_signal_ends_a_job_that_a_test_has_started",
            "test_programs_that_a_test_starts_ignore_and_block_no_signal",
        )
    ]
    pytest_here = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}", *ours]
    done = subprocess.run(
        [
            "sh",
            "-c",
            "trap '' INT QUIT TERM USR1; nohup \"$@\" & wait $!",
            "sh",
            sys.executable,
            "-c",
            BLOCKED,
            *pytest_here,
        ],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience(170),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout

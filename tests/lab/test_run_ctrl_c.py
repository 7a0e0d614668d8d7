"""Ctrl-C at a real terminal: the script gets SIGINT first and is given its time, and a stuck one costs none."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from launching import Job
from terminal import CTRL_C, Terminal
from waiting import wait_until

pytestmark = pytest.mark.timeout(180)

LONG = 60
"""Seconds of grace that no test waits for: what ends before had not to wait for its end."""

SAVES = """
import os, time
rank = os.environ["RANK"]
try:
    print("up", flush=True)
    while True:
        time.sleep(0.2)  # not one long call: Python misses a signal that arrives just before it begins to sleep
except KeyboardInterrupt:
    print("saving", flush=True)
    time.sleep(1.5)
    with open(f"saved-{rank}", "w") as file:
        file.write("model")
    print("saved", flush=True)
finally:
    open(f"finally-{rank}", "w").close()
"""

IGNORES = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
print("up", flush=True)
time.sleep(1000)
"""

# Each waits for the other in C code, where no Python handler runs.
STUCK = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("up", flush=True)
dist.recv(torch.ones(1), src=1 - dist.get_rank())
"""

# Rank 0 spends each step in one call in C code; the step that is under way ends before its handler can run.
LONG_STEPS = """
import signal, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    signal.signal(signal.SIGINT, lambda *_: None)
try:
    for step in range(1000):
        if dist.get_rank() == 1:
            time.sleep(2)
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 0 and step == 2:
            print("up", flush=True)
except KeyboardInterrupt:
    open("saved-0", "w").close()
"""


def up(terminal: Terminal, ranks: int = 2) -> None:
    """Until the ranks run."""
    terminal.wait_for(r"(?s)" + r"\] up.*" * ranks)


def names(folder: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


@pytest.mark.parametrize(
    "where",
    [
        ["--no-zygote", "--nproc", "2"],
        pytest.param(["--nproc", "2"], marks=pytest.mark.torch),
        pytest.param(["--no-zygote", "--lab", "2", "--nproc", "1"], marks=pytest.mark.lab),
    ],
    ids=["fresh", "forked", "ssh"],
)
def test_a_script_that_handles_ctrl_c_has_the_time_to_save(tmp_path: Path, where: list[str]) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    with Terminal(tmp_path, *where, "--grace", str(LONG), "saves.py") as terminal:
        up(terminal)
        terminal.type(CTRL_C)
        assert terminal.wait(LONG - 10) == 130, terminal.screen
    assert names(tmp_path, "saved-*") == ["saved-0", "saved-1"]
    assert names(tmp_path, "finally-*") == ["finally-0", "finally-1"]
    assert (tmp_path / "saved-1").read_text() == "model"
    assert f"Ctrl-C: stopping all ranks (up to {LONG + 2} s, Ctrl-C again to kill them now)" in terminal.screen
    assert "failed" not in terminal.screen


def test_a_script_without_a_handler_ends_at_once_and_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(1000)\n")
    with Terminal(tmp_path, "--no-zygote", "--nproc", "2", "--grace", str(LONG), "sleeps.py") as terminal:
        up(terminal)
        terminal.type(CTRL_C)
        assert terminal.wait(LONG - 10) == 130, terminal.screen
    assert "KeyboardInterrupt" in terminal.screen, "what the script's own stderr says is shown"
    assert "failed" not in terminal.screen
    assert re.search(r"muster: stopped by Ctrl-C after \d+\.\d s", terminal.screen)


def test_a_script_that_ignores_ctrl_c_gets_sigterm_when_its_grace_is_over(tmp_path: Path) -> None:
    (tmp_path / "ignores.py").write_text(IGNORES)
    with Terminal(tmp_path, "--no-zygote", "--nproc", "2", "--grace", "2", "ignores.py") as terminal:
        up(terminal)
        begin = time.monotonic()
        terminal.type(CTRL_C)
        assert terminal.wait(60) == 130, terminal.screen
        assert time.monotonic() - begin > 1.8, "it had its grace"
    assert terminal.screen.count("] ended by SIGTERM") == 2


@pytest.mark.torch
def test_ranks_that_are_stuck_in_a_collective_do_not_cost_the_grace(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    with Terminal(tmp_path, "--nproc", "2", "--grace", str(LONG), "stuck.py") as terminal:
        up(terminal)
        terminal.type(CTRL_C)
        assert terminal.wait(LONG - 20) == 130, terminal.screen
    assert "again" not in terminal.screen.partition("SIGINT")[2].partition("Ctrl-C again")[2]


@pytest.mark.torch
def test_a_long_step_in_c_code_is_not_taken_for_stuck(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(LONG_STEPS)
    with Terminal(tmp_path, "--nproc", "2", "--grace", str(LONG), "slow.py") as terminal:
        up(terminal, 1)
        terminal.type(CTRL_C)
        assert terminal.wait(LONG - 10) == 130, terminal.screen
    assert names(tmp_path, "saved-*") == ["saved-0"]


def test_a_second_ctrl_c_ends_a_script_that_is_still_saving(tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(SAVES.replace("1.5", "1000"))
    with Terminal(tmp_path, "--no-zygote", "--nproc", "2", "--grace", "500", "saves.py") as terminal:
        up(terminal)
        terminal.type(CTRL_C)
        terminal.wait_for(r"(?s)\] saving.*\] saving")
        terminal.type(CTRL_C)
        assert terminal.wait(60) == 130, terminal.screen
    assert "again: killing all ranks" in terminal.screen
    assert names(tmp_path, "finally-*") == []


def test_no_grace_means_no_time_for_a_handler(tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    with Terminal(tmp_path, "--no-zygote", "--nproc", "1", "--grace", "0", "saves.py") as terminal:
        up(terminal, 1)
        terminal.type(CTRL_C)
        assert terminal.wait(60) == 130, terminal.screen
    assert names(tmp_path, "saved-*") == []


def test_sigterm_still_reaches_the_script_as_sigterm(tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(
        "import signal, sys\n"
        + SAVES.replace("try:", "signal.signal(signal.SIGTERM, lambda *_: sys.exit('ended by SIGTERM'))\ntry:", 1)
    )
    with Job(tmp_path, "--no-zygote", "--nproc", "1", "--grace", str(LONG), "saves.py") as job:
        wait_until("the rank", lambda: "] up" in job.out, 60, lambda: job.err)
        job.process.terminate()
        done = job.wait(LONG - 10)
    assert done.code == 143, done.said
    assert "] ended by SIGTERM" in done.err
    assert names(tmp_path, "saved-*") == []


def test_what_a_rank_leaves_behind_ends_soon_after_its_handler(tmp_path: Path) -> None:
    """A child that ignores both signals costs the time after SIGTERM, not the whole grace."""
    (tmp_path / "leaves.py").write_text(
        "import subprocess\n"
        "subprocess.Popen(['sh', '-c', 'trap \"\" INT TERM; sleep 1000 & wait; sleep 1000'], start_new_session=True)\n"
        + SAVES
    )
    with Terminal(tmp_path, "--no-zygote", "--nproc", "1", "--grace", str(LONG), "leaves.py") as terminal:
        up(terminal, 1)
        terminal.type(CTRL_C)
        assert terminal.wait(LONG - 20) == 130, terminal.screen
    assert names(tmp_path, "saved-*") == ["saved-0"]

"""A job that hangs, on real ranks: who is named, what is written, and what is left alone."""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from launching import MUSTER, PLAIN, Done, run_here, wait_until

PLAYS = """
import ctypes, os, signal, subprocess, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

rank = int(os.environ["RANK"])
LONG = 5

class Slow(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 2:
            time.sleep(LONG)                           # loader
        return torch.ones(1)

def sleeps():
    time.sleep(LONG)                                   # sleep

def holds():
    ctypes.PyDLL(None).sleep(LONG)                     # hold

def stops():
    subprocess.Popen(["sh", "-c", f"sleep {LONG}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)

def loads():
    for _ in DataLoader(Slow(), num_workers=1):        # main
        pass

def computes():
    end = time.time() + LONG
    while time.time() < end:
        sum(range(1000))

dist.init_process_group("gloo")
for act in (sleeps, holds, stops, loads, computes):
    for _ in range(20):
        dist.all_reduce(torch.ones(8))
    if rank == 1:
        begin = time.time()
        act()
        print(act.__name__, round(time.time() - begin), flush=True)
    dist.all_reduce(torch.ones(8))                     # wait
"""


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def line_of(text: str, mark: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {mark}"))


def stacks(done: Done, number: int = 1) -> str:
    return (done.folder / f"stacks-{number}.txt").read_text()


@pytest.mark.torch
def test_hangs_are_named_one_after_the_other_and_a_rank_that_computes_is_not(tmp_path: Path):
    script(tmp_path, PLAYS)
    done = run_here(tmp_path, "--nproc", "2", "--hang-after", "2", "--no-check", "train.py", timeout=110)
    assert done.code == 0, done.said
    places = {mark: f"train.py:{line_of(PLAYS, mark)}" for mark in ("sleep", "hold", "main", "loader", "wait")}
    told = [line.partition("; ") for line in done.err.splitlines() if "hang: " in line]
    assert len(told) == 4, done.said
    for waits, _, _ in told:
        assert waits.startswith("muster: hang: rank 0 waits in all_reduce number "), waits
        assert waits.endswith(f"({places['wait']})"), waits
    sleeps, holds, stops, loads = (cause for _, _, cause in told)
    assert f"is in sleeps ({places['sleep']}) for " in sleeps
    assert f"holds Python's lock in C code, in holds ({places['hold']}), for " in holds
    assert "is stopped (SIGSTOP), last seen at train.py:" in stops
    assert f"is waiting for its DataLoader in loads ({places['main']}), whose worker process " in loads
    assert f" is in __getitem__ ({places['loader']}), for " in loads
    assert done.err.count("muster: moving again after ") == 4
    # What was asked did not disturb: each act took as long as it should.
    assert done.lines(1) == ["sleeps 5", "holds 5", "stops 5", "loads 5", "computes 5"]
    assert f'train.py", line {line_of(PLAYS, "sleep")}, in sleeps' in stacks(done)
    state = json.loads((done.folder / "state.json").read_text())
    assert [(report["kind"], report["ranks"]) for report in state["reports"] if report["kind"] == "hang"] == [
        ("hang", [1])
    ] * 4


@pytest.mark.torch
def test_a_hang_can_end_the_job(tmp_path: Path):
    text = """
    import os, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "0":
        dist.broadcast(torch.ones(8), 0)
        time.sleep(1000)
    dist.all_reduce(torch.ones(8))
    """
    script(tmp_path, text)
    options = ("--nproc", "2", "--hang-after", "1", "--on-hang", "kill", "--grace", "0", "--no-check")
    done = run_here(tmp_path, *options, "train.py")
    assert done.code == 124, done.said
    assert "muster: ended because it hung (--on-hang kill): rank 0 calls broadcast" in done.err
    assert " but rank 1 calls all_reduce (train.py:7) as collective number 1, which can never finish" in done.err


@pytest.mark.torch
def test_a_torch_that_cannot_be_watched_is_told_in_one_line_and_runs(tmp_path: Path):
    text = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    """
    script(tmp_path, text)
    done = run_here(tmp_path, "--nproc", "2", "--no-check", "--env", "TORCH_FR_BUFFER_SIZE=0", "train.py")
    assert done.code == 0, done.said
    assert done.err.count("cannot be told in this job: TORCH_FR_BUFFER_SIZE=0 turns torch's flight recorder off") == 1


@pytest.mark.torch
def test_stacks_are_written_when_ctrl_c_ends_a_job_that_stands_still(tmp_path: Path):
    text = """
    import os, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "0":
        print("ready", flush=True)
        time.sleep(1000)
    dist.all_reduce(torch.ones(8))
    """
    script(tmp_path, text)
    state = tmp_path / "state"
    argv = [MUSTER, "run", "--no-check", "--nproc", "2", "train.py"]
    with subprocess.Popen(
        argv, cwd=tmp_path, env={**PLAIN, "XDG_STATE_HOME": str(state)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline().endswith(b"ready\n")
        time.sleep(4.5)
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=30)
    assert job.returncode == 130
    assert b"SIGINT: stopping all ranks after a look at where they are" in err
    assert b"the stacks of 2 ranks are in " in err
    (folder,) = (state / "muster" / "jobs").iterdir()
    assert 'train.py", line 6, in <module>' in (folder / "stacks-1.txt").read_text()


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: None)
child = subprocess.Popen(["sleep", "1000"])
if os.fork() == 0:
    while True:
        time.sleep(100)      # child
print("ready", flush=True)
def stubborn():
    while True:
        time.sleep(100)      # parent
stubborn()
"""


def test_stacks_are_written_when_ctrl_c_comes_twice(tmp_path: Path):
    script(tmp_path, STUBBORN)
    state = tmp_path / "state"
    argv = [MUSTER, "run", "--no-zygote", "--no-check", "--nproc", "2", "--grace", "30", "train.py"]
    with subprocess.Popen(
        argv, cwd=tmp_path, env={**PLAIN, "XDG_STATE_HOME": str(state)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as job:
        assert job.stdout is not None
        for _ in range(2):
            assert job.stdout.readline().endswith(b"ready\n")
        job.send_signal(signal.SIGINT)
        folder = wait_until("the job's folder", lambda: list((state / "muster" / "jobs").iterdir()), 10)[0]
        wait_until("the stop to be known", lambda: b"stopping" in (folder / "state.json").read_bytes(), 10)
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=30)
    assert job.returncode == 130
    assert b"the stacks of 2 ranks are in " in err
    text = (folder / "stacks-1.txt").read_text()
    assert text.count(f'train.py", line {line_of(STUBBORN, "parent")}, in stubborn') == 2
    # The fork has our handler and tells too; the program would have been killed by the signal and did not get it.
    assert text.count(f'train.py", line {line_of(STUBBORN, "child")}, in <module>') == 2
    assert text.count("(sleep), state S") == 2


def test_stacks_are_written_at_the_time_limit_of_a_launched_function(tmp_path: Path):
    text = """
    import time, muster

    def waits():
        time.sleep(1000)

    if __name__ == "__main__":
        muster.launch(waits, nproc=1, timeout=2, options="--no-zygote --no-check --grace 0")
    """
    path = script(tmp_path, text, "caller.py")
    done = subprocess.run(
        [str(Path(MUSTER).with_name("python")), path],
        cwd=tmp_path,
        env={**PLAIN, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "TimeoutError" in done.stderr
    (folder,) = (tmp_path / "state" / "muster" / "jobs").iterdir()
    assert 'caller.py", line 5, in waits' in (folder / "stacks-1.txt").read_text()

"""A job that hangs, on real ranks: who is named, what is written, and what is left alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from launching import MUSTER, PLAIN, Job, run_here
from waiting import patience, wait_until

# Rank 1 does one thing after the other until it is released; only what must not be reported has its own duration.
PLAYS = """
import ctypes, os, signal, subprocess, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

rank = int(os.environ["RANK"])
gate = os.open("gate", os.O_RDWR)

class Slow(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 2:
            os.read(gate, 1)                           # loader
        return torch.ones(1)

def reads():
    os.read(gate, 1)                                   # read

def holds():
    byte = ctypes.create_string_buffer(1)
    got = ctypes.PyDLL(None).read(gate, byte, 1)       # hold
    assert got == 1, "a signal has interrupted it"

def stops():
    subprocess.Popen(["sh", "-c", f"head -c1 gate; kill -CONT {os.getpid()}"], stdout=subprocess.DEVNULL)
    os.kill(os.getpid(), signal.SIGSTOP)

def loads():
    for _ in DataLoader(Slow(), num_workers=1):        # main
        pass

def computes():
    end = time.monotonic() + 5
    while time.monotonic() < end:
        sum(range(1000))

dist.init_process_group("gloo")
for act in (reads, holds, stops, loads, computes):
    for _ in range(20):
        dist.all_reduce(torch.ones(8))
    if rank == 1:
        act()
        print(act.__name__, flush=True)
    dist.all_reduce(torch.ones(8))                     # wait
dist.destroy_process_group()
"""


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def line_of(text: str, mark: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {mark}"))


@pytest.mark.torch
def test_hangs_are_named_one_after_the_other_and_a_rank_that_computes_is_not(tmp_path: Path):
    script(tmp_path, PLAYS)
    os.mkfifo(tmp_path / "gate")
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    places = {mark: f"train.py:{line_of(PLAYS, mark)}" for mark in ("read", "hold", "main", "loader", "wait")}
    causes = {
        "reads": rf"has been in reads \({places['read']}\) for ",
        "holds": rf"has held the GIL in C code for \d+ s, in holds \({places['hold']}\)",
        "stops": r"has been stopped \(SIGSTOP\) for \d+ s, last seen at train\.py:",
        "loads": rf"has been waiting for its DataLoader for \d+ s in loads \({places['main']}\); its worker "
        rf"process \d+ is in __getitem__ \({places['loader']}\)",
    }
    waits = rf"rank 0 is waiting in all_reduce number \d+ \({places['wait']}\); rank 1 on \S+ "
    sentences = [waits + cause for cause in causes.values()]
    with Job(tmp_path, "--nproc", "2", "--hang-after", "2", "--no-check", "train.py") as job:
        for sentence in sentences:
            job.wait_for(sentence)
            os.write(gate, b"x")
        done = job.wait(60)
    os.close(gate)
    assert done.code == 0, done.said
    assert done.lines(1) == [*causes, "computes"], "what was asked did not disturb"
    # A busy machine may delay a rank for longer than 2 s, which is then correctly reported as well.
    reported = re.findall(r"^muster: hang: (.*)$", done.err, re.MULTILINE)
    ours = [[line for line in reported if re.match(sentence, line)] for sentence in sentences]
    assert [len(lines) for lines in ours] == [1, 1, 1, 1], done.said
    assert not [line for line in reported if " working" in line], done.said
    assert done.err.count("muster: the job is making progress again after ") == len(reported), done.said
    stacks = [path.read_text() for path in done.folder.glob("stacks-*.txt")]
    assert [text for text in stacks if f'train.py", line {line_of(PLAYS, "read")}, in reads' in text]
    reports = json.loads((done.folder / "state.json").read_text())["reports"]
    named = {report["sentence"]: report["ranks"] for report in reports if report["kind"] == "hang"}
    assert [named[line] for (line,) in ours] == [[1]] * 4


@pytest.mark.torch
def test_a_hang_can_end_the_job(tmp_path: Path, kept: Path):
    text = """
    import os, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "0":
        dist.broadcast(torch.ones(8), 0)
        time.sleep(1000)
    dist.all_reduce(torch.ones(8))
    """
    script(tmp_path, text)
    # Long enough for a rank of a busy machine to join late: that would be a hang too.
    options = ("--nproc", "2", "--hang-after", "5", "--on-hang", "kill", "--grace", "0", "--no-check", "--keep", "5m")
    done = run_here(tmp_path, *options, "train.py", state=kept)
    assert done.code == 124, done.said
    assert "muster: the job hung and was ended (--on-hang kill): rank 0 calls broadcast" in done.err
    assert " but rank 1 calls all_reduce (train.py:7) as collective number 1, which can never finish" in done.err


@pytest.mark.torch
@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("world_size=4", "they expect 4 ranks, but this job has 2"),
        (
            'init_method=f"tcp://127.0.0.2:{port + rank}", world_size=2',
            r"they use different rendezvous addresses: rank 0 at 127\.0\.0\.2:\d+, rank 1 at 127\.0\.0\.2:\d+;",
        ),
    ],
    ids=["too-many-expected", "different-places"],
)
def test_ranks_that_do_not_find_each_other_get_the_reason(tmp_path: Path, kept: Path, call: str, words: str):
    text = f"""
    import os, torch.distributed as dist
    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    dist.init_process_group("gloo", rank=rank, {call})
    """
    script(tmp_path, text)
    options = ("--nproc", "2", "--hang-after", "5", "--on-hang", "kill", "--grace", "0", "--no-check", "--keep", "5m")
    done = run_here(tmp_path, *options, "train.py", state=kept)
    assert done.code == 124, done.said
    assert re.search(rf"hang: ranks 0, 1 are waiting in init_process_group \(train\.py:4\); {words}", done.err), (
        done.said
    )


@pytest.mark.torch
def test_a_torch_that_cannot_be_monitored_is_reported_in_one_line_and_runs(tmp_path: Path):
    text = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    """
    script(tmp_path, text)
    done = run_here(tmp_path, "--nproc", "2", "--no-check", "--env", "TORCH_FR_BUFFER_SIZE=0", "train.py")
    assert done.code == 0, done.said
    assert (
        done.err.count("detection is disabled for this job: TORCH_FR_BUFFER_SIZE=0 disables torch's flight recorder")
        == 1
    )


@pytest.mark.torch
def test_stacks_are_written_when_ctrl_c_ends_a_job_that_stands_still(tmp_path: Path, kept: Path):
    text = """
    import os, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "0":
        time.sleep(1000)
    dist.all_reduce(torch.ones(8))
    """
    script(tmp_path, text)
    options = ("--no-check", "--nproc", "2", "--hang-after", "4", "--keep", "5m")
    with Job(tmp_path, *options, "train.py", state=kept) as job:
        job.wait_for("hang: rank 1 is waiting in all_reduce")  # then nothing has moved for more than 3 s
        job.wait_for("stack traces of all ranks: ")
        job.process.send_signal(signal.SIGINT)
        done = job.wait(60)
    assert done.code == 130, done.said
    assert "Ctrl-C: saving stack traces, then stopping all ranks" in done.err
    assert "stack traces of 2 ranks: " in done.err
    assert 'train.py", line 5, in <module>' in (done.folder / "stacks-2.txt").read_text()


# Who says that it is there is in the very line where its stack must show it.
STUBBORN = """
import os, signal, subprocess, time
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, lambda number, frame: None)
child = subprocess.Popen(["sleep", "1000"])
there, say = os.pipe()
if os.fork() == 0:
    while os.write(say, b"x"): time.sleep(100)                   # child
os.read(there, 1)
def stubborn():
    while print("ready", flush=True) is None: time.sleep(100)    # parent
stubborn()
"""


def test_stacks_are_written_when_ctrl_c_comes_twice(tmp_path: Path):
    script(tmp_path, STUBBORN)
    with Job(tmp_path, "--no-zygote", "--no-check", "--nproc", "2", "--grace", "60", "train.py") as job:
        wait_until("both ranks", lambda: job.out.count("ready\n") == 2, 30, lambda: job.err)
        job.process.send_signal(signal.SIGINT)
        job.wait_for("Ctrl-C: stopping all ranks")
        job.process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        done = job.wait(40)
        assert time.monotonic() - begin < 50, "the grace time is 60 s"
    assert done.code == 130, done.said
    assert "stack traces of 2 ranks: " in done.err
    text = (done.folder / "stacks-1.txt").read_text()
    assert text.count(f'train.py", line {line_of(STUBBORN, "parent")}, in stubborn') == 2
    # The fork has our handler and reports too; the program would have been killed by the signal and did not get it.
    assert text.count(f'train.py", line {line_of(STUBBORN, "child")}, in <module>') == 2
    assert len(re.findall(r"\(sleep\), state [SRD]", text)) == 2


def test_stacks_are_written_at_the_time_limit_of_a_launched_function(tmp_path: Path):
    text = """
    import time, muster

    def waits():
        time.sleep(1000)

    if __name__ == "__main__":
        muster.launch(waits, nproc=1, timeout=6, options="--no-zygote --no-check --grace 0")
    """
    path = script(tmp_path, text, "caller.py")
    done = subprocess.run(
        [str(Path(MUSTER).with_name("python")), path],
        cwd=tmp_path,
        env={**PLAIN, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert "TimeoutError" in done.stderr
    (folder,) = (tmp_path / "state" / "muster" / "jobs").iterdir()
    assert 'caller.py", line 5, in waits' in (folder / "stacks-1.txt").read_text()

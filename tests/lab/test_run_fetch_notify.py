"""`--fetch` brings results back from hosts, `--notify` reports an end or a hang: whole commands."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from launching import Job, run_here
from waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

WRITE = """
import os, sys, time
host = os.environ["GROUP_RANK"]
os.makedirs("results/parts", exist_ok=True)
# Another size each time: equal sizes within one second count as the same file, as with rsync.
open("results/log.txt", "w").write("log of " + host + "!" * ("fail" in sys.argv))
open(f"results/parts/{host}.bin", "wb").write(bytes(1_500_000))
if "fail" in sys.argv:
    sys.exit(3)
if "stay" in sys.argv:
    print("written", file=sys.stderr, flush=True)
    time.sleep(100)
"""

HANG = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.zeros(1))
if dist.get_rank() == 1:
    time.sleep(100)
dist.all_reduce(torch.zeros(1))
"""


def contents(folder: Path) -> dict[str, int]:
    """The files below a folder that a user sees, with their sizes."""
    files = (path for path in folder.rglob("*") if path.is_file() and not str(path.relative_to(folder)).startswith("."))
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def test_results_of_all_hosts_come_back_also_from_a_job_that_failed(tmp_path: Path):
    (tmp_path / "train.py").write_text(WRITE)
    options = ("--lab", "2", "--nproc", "1", "--no-zygote", "--sync", "--fetch", "results")
    done = run_here(tmp_path, *options, "train.py")
    assert done.code == 0, done.said
    del (found := contents(tmp_path))["train.py"]
    assert found == {
        "results/log.txt": 8,
        "h2/results/log.txt": 8,
        "results/parts/0.bin": 1_500_000,
        "results/parts/1.bin": 1_500_000,
    }
    assert (tmp_path / "results/log.txt").read_text() == "log of 0"
    assert "copied 4 files (2.86 MB) from h1, h2" in done.err

    done = run_here(tmp_path, *options[:-1], "results/log.txt", "train.py", "fail")
    assert done.code == 3, done.said
    assert "results/log.txt~" in done.err, done.said
    assert (tmp_path / "results/log.txt~").read_text() == "log of 0"


def test_results_come_back_after_ctrl_c(tmp_path: Path):
    (tmp_path / "train.py").write_text(WRITE)
    with Job(tmp_path, "--nproc", "1", "--no-zygote", "--sync", "--fetch", "results/*.txt", "train.py", "stay") as job:
        job.wait_for("written")
        job.process.send_signal(signal.SIGINT)
        done = job.wait(60)
    assert done.code == 130, done.said
    assert (tmp_path / "results/log.txt").read_text() == "log of 0"


def test_a_missing_result_is_an_error_of_muster_if_the_ranks_ended_well(tmp_path: Path):
    (tmp_path / "train.py").write_text("")
    done = run_here(tmp_path, "--no-zygote", "--sync", "--fetch", "model.pt", "train.py")
    assert done.code == 125, done.said
    assert "--fetch: model.pt: no host has such a file" in done.err


def test_a_command_hears_of_the_end_of_a_job_in_the_background(tmp_path: Path):
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    file = tmp_path / "heard"
    command = f'echo "$MUSTER_JOB $MUSTER_EVENT $MUSTER_EXIT_CODE $MUSTER_MESSAGE" > {file}.new; mv {file}.new {file}'
    done = run_here(tmp_path, "--no-zygote", "--detach", "--notify", command, "train.py")
    wait_until("the notification", file.exists, 60)
    job, event, code, *message = file.read_text().split()
    assert (job, event, code) == (done.out.strip() or job, "end", "3")
    assert " ".join(message).startswith("train.py: failed after")


@pytest.mark.torch
def test_a_command_hears_of_a_hang(tmp_path: Path):
    (tmp_path / "train.py").write_text(HANG)
    file = tmp_path / "heard"
    command = f'echo "$MUSTER_EVENT:$MUSTER_EXIT_CODE" >> {file}'
    done = run_here(
        tmp_path, "--nproc", "2", "--hang-after", "2s", "--on-hang", "kill", "--notify", command, "train.py"
    )
    assert done.code == 124, done.said
    assert sorted(file.read_text().split()) == ["end:124", "hang:"]


def test_a_notification_that_fails_is_one_warning_and_the_exit_code_stays(tmp_path: Path):
    (tmp_path / "train.py").write_text("")
    done = run_here(tmp_path, "--no-zygote", "--notify", "echo no such user >&2; exit 4", "train.py")
    assert done.code == 0, done.said
    assert done.err.count("--notify") == 1
    assert "muster: --notify echo no such user >&2; exit 4: exit code 4: no such user" in done.err

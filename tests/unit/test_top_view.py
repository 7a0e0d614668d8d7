"""The screen of `muster top`: everything in 80 columns, the most important parts in fewer."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_jobs import state_of

from muster.jobs.job_folders import KeptJob
from muster.jobs.state import GpuState, HostState, RankState, Report
from muster.jobs.top_view import frame

GIB = 1 << 30


def job(ranks: int = 8, hosts: int = 2, **fields: Any) -> KeptJob:
    gpus = tuple(GpuState(index=n, use=0.97, memory_used=60 * GIB, memory_total=80 * GIB) for n in range(8))
    described = tuple(
        HostState(
            name=f"gpu{number:02d}",
            state="up",
            cpus=64,
            cpu_use=0.41,
            memory_used=24 * GIB,
            memory_total=512 * GIB,
            disk_wait=0.02,
            network_in=1.2e9,
            network_out=3e8,
            gpus=gpus,
        )
        for number in range(hosts)
    )
    placed = tuple(
        RankState(
            rank=rank,
            host=described[rank * hosts // ranks].name,
            local_rank=rank % 8,
            gpu=rank % 8,
            state="lost" if rank == ranks - 1 else "running",
            steps=12034,
            step_rate=41.23,
            waiting=0.12,
            cpu=1.02,
            memory=2 * GIB,
            gpu_memory=60 * GIB,
            place="train.py:88 in step",
        )
        for rank in range(ranks)
    )
    state = state_of(world_size=ranks, hosts=described, ranks=placed, **fields)
    return KeptJob(id=state.id, folder=Path("/none"), state=state, life="alive")


def lines(shown: KeptJob, width: int = 80, height: int = 24, colour: bool = False) -> list[str]:
    assert shown.state is not None
    return frame(shown, width=width, height=height, now=shown.state.now, color=colour)


def test_eighty_columns_hold_hosts_ranks_and_what_they_use():
    text = lines(job())
    assert text[0] == "20261115-101500-train-3f9a  running, 100s"
    assert text[1] == "8 ranks on 2 hosts (local), 41.2 steps/s: train.py --lr 0.1"
    assert text[3].split() == ["HOST", "STATE", "CPU", "MEMORY", "DISK", "WAIT", "NET", "IN/OUT", "GPUS"]
    assert text[4].split() == ["gpu00", "up", "41%", "of", "64", "24G/512G", "2%", "1.1G/286M", "8x", "97%"]
    assert text[7].split() == ["RANK", "HOST", "STATE", "STEPS", "PER", "S", "WAITS", "CPU", "MEM", "GPU", "GPU", "MEM"]
    assert text[8].split() == ["0", "gpu00", "running", "12034", "41.2", "12%", "1.02", "2.0G", "0:", "97%", "60G"]


def test_a_wide_terminal_also_says_where_ranks_are():
    assert "train.py:88 in step" in lines(job(), width=120)[8]


def test_a_narrow_terminal_keeps_what_matters():
    titles = lines(job(), width=40)[7]
    assert titles.split() == ["RANK", "STATE", "PER", "S", "WAITS", "GPU"]


def test_where_not_all_ranks_fit_those_in_trouble_are_shown_and_all_are_counted():
    text = "\n".join(lines(job(ranks=64, hosts=8)))
    assert re.search(r"^ *63 .*lost", text, re.MULTILINE)
    assert re.search(r"… \d+ more ranks; of all: 63 running, 1 lost", text)
    assert re.search(r"… \d+ more hosts", text)


def test_reports_stand_at_the_bottom_in_full():
    sentence = (
        "ranks 0, 1 and 3 are waiting in all_reduce number 102 (train.py:88); "
        "rank 2 on gpu01 has been in next_batch (data.py:33)"
    )
    text = lines(job(reports=(Report(kind="hang", time=time.time(), sentence=sentence),)))
    assert sentence in " ".join(part.strip() for part in text[-2:])


def test_colours_only_where_they_are_wanted():
    assert not any("\x1b" in line for line in lines(job()))
    assert any("\x1b[31mlost" in line for line in lines(job(), colour=True))


def test_what_a_command_line_holds_cannot_move_the_cursor():
    assert "\x1b" not in "".join(lines(job(command="train.py \x1b[2J\x07")))


def test_a_host_whose_cpu_use_is_not_known_yet_has_a_dash():
    shown = KeptJob(id="x", folder=Path("/none"), state=state_of(phase="preparing"), life="alive")
    assert re.search(r"^h1 +up +- of 4$", "\n".join(lines(shown)), re.MULTILINE)


def test_a_job_that_waits_for_hosts_says_for_which():
    waiting = job(ranks=1, hosts=1, phase="connecting", sentence="1 of 2 hosts up, waiting for gpu02")
    assert "waiting for hosts" in lines(waiting)[0]
    assert lines(waiting)[-1] == "1 of 2 hosts up, waiting for gpu02"


@pytest.mark.parametrize("ranks", [1, 8, 100])
@given(width=st.integers(1, 200), height=st.integers(1, 60))
def test_no_picture_is_larger_than_the_terminal(ranks: int, width: int, height: int):
    text = lines(job(ranks=ranks, hosts=min(ranks, 13)), width, height)
    assert len(text) <= height
    assert max(map(len, text)) <= width

"""A job to be shown: two hosts, eight ranks, one of which has failed, with a history, reports and logs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

from muster.jobs.state import Failure, GpuState, HostState, JobState, Moment, RankState, Report

BEGIN = 1_790_000_000.0
HOSTILE = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title='taken over'\">"

STACKS = {
    rank: f"Thread 0x00007f{rank:04x} (most recent call first):\n"
    + ('  File "data.py", line 33 in next_batch\n' if rank == 2 else '  File "train.py", line 88 in step\n')
    + '  File "train.py", line 120 in main\n'
    for rank in range(8)
}


def gpu(index: int) -> GpuState:
    return GpuState(
        index=index,
        name="NVIDIA H200",
        use=0.93 - 0.1 * index,
        memory_used=(61 + index) * 10**9,
        memory_total=141 * 10**9,
        clock=1980 if index else 1410,
        clock_max=1980,
        temperature=66,
        throttled="" if index else "power",
    )


def host(name: str, gpus: int) -> HostState:
    return HostState(
        name=name,
        state="up",
        cpus=64,
        cpu_use=0.41,
        load=26.0,
        memory_used=91 * 10**9,
        memory_total=512 * 10**9,
        network_in=2.1e9,
        network_out=2.0e9,
        gpus=tuple(gpu(index) for index in range(min(gpus, 4))),
    )


def rank_of(rank: int, half: int, failed: int | None) -> RankState:
    """A rank of which `half` run on each host."""
    return RankState(
        rank=rank,
        host="gpu01" if rank < half else "gpu02",
        local_rank=rank % half,
        gpu=rank % half,
        pid=9000 + rank,
        state="failed" if rank == failed else "running" if rank == 2 else "waiting",
        collectives=4100,
        steps=1020,
        step_rate=11.2,
        waiting=0.04 if rank == 2 else 0.37,
        cpu=1.1,
        memory=5 * 10**9,
        gpu_memory=61 * 10**9,
        place="train.py:91" if rank == failed else "data.py:33 in next_batch" if rank == 2 else "",
        exit_code=1 if rank == failed else None,
    )


def job(*, ranks: int = 8, failed: int | None = 5) -> JobState:
    """The job while it runs; `failed` is a rank that has ended with code 1."""
    half = max(1, ranks // 2)
    return JobState(
        id="20261115-101500-train-3f9a",
        command="train.py --lr 0.1",
        cwd="/home/ada/work",
        engine="ssh",
        begin=BEGIN,
        now=BEGIN + 95,
        phase="running",
        controller=4242,
        host="desk",
        world_size=ranks,
        hosts=tuple(host(name, half) for name in ("gpu01", "gpu02")),
        ranks=tuple(rank_of(number, half, failed) for number in range(ranks)),
        history=tuple(
            Moment(
                time=BEGIN + 2 * number,
                step_rate=11 + math.sin(number / 3) if number else None,
                waiting={
                    rank: 0.04 if rank == 2 else 0.3 + 0.07 * math.sin(number / 4 + rank) for rank in range(ranks)
                },
                hosts={
                    name: (
                        0.41 + 0.05 * math.sin(number / 5),
                        0.178,
                        0.78,
                        2_000_000_000 + 9_000_000 * number,
                        2_000_000_000,
                    )
                    for name in ("gpu01", "gpu02")
                },
            )
            for number in range(47)
        ),
        reports=(
            Report(
                kind="hang",
                time=BEGIN + 90,
                sentence="ranks 0, 1, 3 to 7 are waiting in all_reduce number 102 (train.py:88); "
                "rank 2 on gpu01 has been in next_batch (data.py:33) for 31 s",
                ranks=(2,),
                detail="group 0: 7 of 8 ranks have begun number 102",
                stacks=STACKS,
            ),
        ),
        phases={"connected": 0.8, "imported": 4.0, "first collective": 4.95},
    )


def ended(state: JobState) -> JobState:
    """The same job when it is over."""
    sentence = "rank 5 on gpu02 failed first, 93.0 s after the start: ValueError: loss is nan (train.py:91)"
    failure = Failure(
        sentence=sentence,
        rank=5,
        detail='Traceback (most recent call last):\n  File "train.py", line 91, in <module>\nValueError: loss is nan\n',
        lines=("The loss has overflowed", "Fix: lower the learning rate", "7 ranks stopped by Muster because of it"),
        attempt=state.attempt,
        time=BEGIN + 93,
        host="gpu02",
        place="train.py:91",
    )
    return replace(state, phase="ended", exit_code=1, sentence=sentence, failures=(failure,))


def write_folder(folder: Path, state: JobState) -> Path:
    """The folder the job would have left, with something hostile in a log."""
    (folder / "attempt-0").mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps(state.as_data()))
    for rank in state.ranks:
        lines = [f"step {step} loss {3 / (step + 1):.4f} rank {rank.rank}" for step in range(1500)]
        lines[700] = f"\x1b[31mneedle in rank {rank.rank}\x1b[0m"
        lines.append(HOSTILE)
        (folder / "attempt-0" / f"rank-{rank.rank}.log").write_text("\n".join(lines) + "\n")
    return folder

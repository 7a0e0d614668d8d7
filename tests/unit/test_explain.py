"""Why a rank failed and what to do: each row with the texts torch really says, and silence where nothing is known."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import failure_texts as texts
import pytest

from muster.run.ends import RankEnd
from muster.run.explain import ROWS, Explanation, explain
from muster.run.explain.case import size
from muster.run.facts import Disk, Memory
from muster.run.verdict import judge

GB = 1 << 30
MB = 1 << 20


def end(rank: int = 0, status: int = 1, message: str = "", kind: str = "RuntimeError", **more: Any) -> RankEnd:
    """A rank on its own host h1, h2, … that failed with an exception, if it has a message."""
    more.setdefault("summary", f"{kind}: {message.splitlines()[0]}" if message else "")
    more.setdefault("host", f"h{rank + 1}")
    return RankEnd(rank=rank, status=status, time=more.pop("time", 10.0), message=message, **more)


def why(first: RankEnd, *others: RankEnd, early: RankEnd | None = None) -> Explanation:
    found = explain(first, [first, *others, *([early] if early else [])], early)
    assert found is not None
    return found


def nothing_is_said(first: RankEnd, *others: RankEnd) -> bool:
    return explain(first, [first, *others]) is None


def disk(path: str = "/ckpt/step.pt", folder: str = "/ckpt", free: int = 0, total: int = 20 * MB, **more: Any) -> Disk:
    return Disk(path=path, folder=folder, free=free, total=total, **more)


ROOM = {"free": 200 * GB, "total": 900 * GB}


# --- silence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ValueError", "bad sample in shard 7"),
        ("KeyError", "'loss'"),
        ("AssertionError", ""),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x4 and 5x3)"),
        ("RuntimeError", texts.UNUSED),
        ("TypeError", "cannot allocate more than one killed worker"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'peer.csv'"),
        ("RuntimeError", "CUDA error: device-side assert triggered"),
    ],
)
def test_an_ordinary_exception_needs_no_explanation(kind: str, message: str):
    facts = {"memory": Memory(group_kills=0, total=24 * GB), "disks": (disk(**ROOM),), "shm": disk(**ROOM)}
    assert nothing_is_said(end(message=message, kind=kind, **facts))


def test_a_full_disk_that_the_error_is_not_about_is_not_blamed():
    assert nothing_is_said(end(message="bad sample", kind="ValueError", disks=(disk(),), shm=disk()))


def test_memory_kills_elsewhere_on_the_host_are_not_blamed_for_an_exception():
    assert nothing_is_said(end(message="bad sample", kind="ValueError", memory=Memory(group_kills=3, host_kills=3)))


@pytest.mark.parametrize("status", [3, -signal.SIGSEGV, -signal.SIGTERM, -signal.SIGABRT])
def test_an_exit_code_or_a_crash_without_words_is_not_explained(status: int):
    assert nothing_is_said(end(status=status, memory=Memory(group_kills=0, total=24 * GB)))


def test_every_row_says_what_it_is_recognised_by_and_where_that_was_learnt():
    assert all(row.symptom and row.source for row in ROWS)
    assert {row.number for row in ROWS} >= {33, 34, 35, 41, 43, 46, 47, 51, 52}


# --- row 46: memory ------------------------------------------------------------------------------------------------


def test_the_limit_of_a_container_that_was_reached_is_named_with_what_the_rank_held():
    found = why(
        end(
            status=-9,
            memory=Memory(group_kills=1, host_kills=1, limit=64 * MB, peak=64 * MB, total=24 * GB),
            inside="container",
            rss=61 * MB,
        )
    )
    assert found.sentence == (
        "the kernel killed it, because its container on h1 came to its memory limit of 64 MB; the rank itself held "
        "61 MB at most"
    )
    assert '--container-args "--memory' in found.fix
    assert found.row == 46


@pytest.mark.parametrize(
    ("inside", "owner", "words"),
    [
        ("slurm", "its Slurm job", "sbatch"),
        ("pbs", "its PBS job", "qsub"),
        ("", "its control group", "raise the limit"),
    ],
)
def test_the_fix_for_a_memory_limit_is_that_of_who_set_it(inside: str, owner: str, words: str):
    found = why(end(status=-9, memory=Memory(group_kills=1, limit=8 * GB, peak=8 * GB, total=24 * GB), inside=inside))
    assert owner in found.sentence
    assert words in found.fix


def test_a_host_without_memory_is_told_from_a_limit_that_was_not_reached():
    found = why(end(status=-9, memory=Memory(group_kills=1, limit=20 * GB, peak=3 * GB, total=24 * GB)))
    assert found.sentence.startswith("the kernel killed it, because h1 ran out of memory (24 GB in all)")
    assert "fewer ranks on that host" in found.fix


def test_where_no_group_is_counted_the_count_of_the_host_serves():
    found = why(end(status=-9, memory=Memory(group_kills=None, host_kills=1, total=24 * GB)))
    assert "h1 ran out of memory" in found.sentence


def test_a_kill_counted_on_the_host_but_not_in_the_ranks_group_is_told_with_the_doubt_there_is():
    found = why(end(status=-9, memory=Memory(group_kills=0, host_kills=1, total=24 * GB)))
    assert "most likely it" in found.sentence


def test_a_kill_by_somebody_else_is_not_called_a_want_of_memory_when_the_counters_did_not_move():
    found = why(end(status=-9, memory=Memory(group_kills=0, host_kills=0, limit=64 * MB, peak=64 * MB, total=24 * GB)))
    assert found.sentence.startswith("the kernel killed nothing for want of memory on h1 then, so somebody sent")
    assert "journalctl" in found.fix
    assert found.row == 0


@pytest.mark.parametrize("memory", [None, Memory(total=24 * GB)])
def test_a_kill_without_any_facts_is_said_to_be_unknown(memory: Memory | None):
    found = why(end(status=-9, memory=memory))
    assert "cannot be told" in found.sentence
    assert not found.fix


def test_a_rank_that_muster_killed_is_not_explained():
    assert nothing_is_said(end(status=-9, stopped=True, memory=Memory(group_kills=1)))


def test_a_dataloader_worker_that_the_kernel_killed_is_told_from_one_that_somebody_killed():
    moved = Memory(group_kills=1, limit=GB, peak=GB, total=24 * GB)
    trace = texts.worker_died(texts.KILLED)
    found = why(end(message=texts.WORKER_DIED, traceback=trace, memory=moved))
    assert found.sentence.startswith("the kernel killed a DataLoader worker of it, because its control group on h1")
    assert nothing_is_said(end(message=texts.WORKER_DIED, traceback=trace, memory=Memory(group_kills=0)))
    crashed = texts.worker_died(texts.SEGMENTATION_FAULT)
    assert nothing_is_said(end(message=texts.WORKER_DIED, traceback=crashed, memory=moved))


@pytest.mark.parametrize(("kind", "message"), [("RuntimeError", texts.NO_MEMORY), ("MemoryError", "")])
def test_memory_that_was_refused_is_told_with_how_much_was_wanted(kind: str, message: str):
    found = why(
        end(message=message, kind=kind, summary=f"{kind}: {message}" if message else kind, memory=Memory(total=24 * GB))
    )
    assert found.sentence == (
        "h1, which has 24 GB, refused it 364 TB of memory" if message else "h1, which has 24 GB, refused it memory"
    )


# --- row 51: disks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "trace"),
    [
        (texts.TORN_MESSAGE, texts.TORN_TRACE),
        (texts.ENOSPC, ""),
        (texts.LEGACY_ENOSPC, ""),
        (texts.NUMPY_SHORT, ""),
        (texts.DCP, ""),
    ],
)
def test_a_full_disk_is_named_whatever_the_words_of_the_writer(message: str, trace: str):
    found = why(end(message=message, traceback=trace, disks=(disk(path="/work", folder="/work", **ROOM), disk())))
    assert found.sentence == "the disk is full: /ckpt on h1 has 0 bytes of 20 MB free"
    assert "du -xh /ckpt" in found.fix
    assert found.row == 51


def test_a_disk_that_can_hold_no_more_files_is_told_from_one_without_room():
    found = why(end(message=texts.ENOSPC, disks=(disk(inodes=0, **ROOM),)))
    assert "/ckpt on h1 can hold no more files, though 200 GB are free" in found.sentence
    assert "df -i /ckpt" in found.fix


def test_a_torn_file_on_a_disk_with_room_is_said_to_be_unknown():
    found = why(end(message=texts.TORN_MESSAGE, traceback=texts.TORN_TRACE, disks=(disk(**ROOM),)))
    assert "cannot be told, since now there is room (/ckpt on h1 has 200 GB of 900 GB free)" in found.sentence


def test_no_space_left_is_believed_even_if_there_is_room_again():
    found = why(end(message=texts.ENOSPC, disks=(disk(**ROOM),)))
    assert found.sentence.startswith("a disk of h1 was full; which one cannot be told")


@pytest.mark.parametrize(
    "words",
    ["No space left on device", "write failed: unexpected pos 704 vs 598", "DataLoader worker killed by signal"],
)
def test_what_was_written_long_before_an_exception_is_not_its_cause(words: str):
    facts = {"disks": (disk(),), "shm": shm(0, 64 * MB), "memory": Memory(group_kills=1)}
    assert nothing_is_said(end(message="bad sample", kind="ValueError", last_words=f"warning: {words}", **facts))


def test_a_limit_of_inotify_is_no_full_disk():
    assert nothing_is_said(end(message="[Errno 28] inotify watch limit reached", kind="OSError", disks=(disk(),)))


def test_a_quota_that_is_used_up_is_no_full_disk():
    assert why(end(message=texts.QUOTA, kind="OSError", disks=(disk(**ROOM),))).sentence == (
        "your disk quota for /ckpt on h1 is used up"
    )


# --- row 33: shared memory -----------------------------------------------------------------------------------------


def shm(free: int, total: int) -> Disk:
    return Disk(path="/dev/shm", folder="/dev/shm", free=free, total=total)


def test_a_full_shared_memory_is_told_although_the_error_is_that_of_a_worker():
    # When the rank has ended its segments are gone: the free space of now proves nothing.
    found = why(end(message=texts.SHM_FULL, shm=shm(15 * MB, 16 * MB), disks=(disk(**ROOM),)))
    assert found.sentence == "/dev/shm on h1, which holds 16 MB, is full"
    assert "mount -o remount,size=8g /dev/shm" in found.fix
    assert found.row == 33


def test_a_semaphore_without_room_is_the_shared_memorys():
    trace = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in '
        f"__init__\n    sl = self._semlock = _multiprocessing.SemLock(\nOSError: {texts.ENOSPC}\n"
    )
    found = why(end(message=texts.ENOSPC, kind="OSError", traceback=trace, shm=shm(0, 64 * MB), disks=(disk(**ROOM),)))
    assert found.sentence == "/dev/shm on h1, which holds 64 MB, is full"


def test_in_a_container_the_fix_for_shared_memory_is_an_option_of_the_container():
    found = why(end(message=texts.SHM_FULL, shm=shm(15 * MB, 16 * MB), inside="container"))
    assert '--container-args "--shm-size 8g"' in found.fix


def test_a_bus_error_is_the_shared_memorys_only_where_that_is_small_or_full():
    trace = texts.worker_died(texts.BUS_ERROR)
    small = why(end(message=texts.WORKER_DIED, traceback=trace, shm=shm(60 * MB, 64 * MB)))
    assert "the one on h1, which holds 64 MB, is small" in small.sentence
    full = why(end(message=texts.WORKER_DIED, traceback=trace, shm=shm(0, 64 * GB)))
    assert "the one on h1, which holds 64 GB, is full" in full.sentence
    neither = why(end(message=texts.WORKER_DIED, traceback=trace, shm=shm(60 * GB, 64 * GB)))
    assert "cannot be told" in neither.sentence
    assert not neither.fix


def test_a_rank_that_dies_of_a_bus_error_itself_is_explained_in_the_same_way():
    found = why(end(status=-signal.SIGBUS, shm=shm(60 * MB, 64 * MB)))
    assert found.row == 33
    mapped = why(end(status=-signal.SIGBUS, shm=shm(60 * GB, 64 * GB), disks=(disk(),)))
    assert "a mapped file on a full disk" in mapped.sentence


def test_nccl_without_shared_memory_says_so_in_its_warnings():
    found = why(end(message=texts.NCCL_SYSTEM, last_words=texts.NCCL_SHM, shm=shm(0, 64 * MB)))
    assert found.sentence == "/dev/shm on h1, which holds 64 MB, is full"


# --- row 52: files that a host lacks -------------------------------------------------------------------------------

NO_FILE = "[Errno 2] No such file or directory: '/data/set/train.bin'"


def lacks(rank: int, host: str) -> RankEnd:
    missing = Disk(path="/data/set/train.bin", folder="/data", **ROOM)
    return end(rank, message=NO_FILE, kind="FileNotFoundError", host=host, disks=(missing,))


def test_a_file_that_one_host_lacks_is_told_with_the_command_that_compares_all():
    found = why(lacks(1, "h2"), end(0, -15, host="h1", stopped=True))
    assert found.sentence == "/data/set/train.bin is not on h2, of its path only /data"
    assert "muster check -H h1,h2 --data /data/set/train.bin" in found.fix


def test_a_file_that_all_hosts_lack_is_an_ordinary_mistake():
    assert nothing_is_said(lacks(1, "h2"), lacks(0, "h1"))
    assert nothing_is_said(lacks(1, "h1"), end(0, -15, host="h1", stopped=True))


def test_a_file_that_is_there_after_all_is_not_called_missing():
    there = Disk(path="/data/set/train.bin", folder="/data/set/train.bin", **ROOM)
    first = end(1, message=NO_FILE, kind="FileNotFoundError", host="h2", disks=(there,))
    assert nothing_is_said(first, end(0, -15, host="h1", stopped=True))


# --- row 43: the model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (texts.MODEL_SHAPE, "parameter 0 is [5, 4] on rank 1 and something else on rank 0"),
        (texts.MODEL_COUNT, "rank 1 has 2 parameters, rank 0 has 1"),
    ],
)
def test_a_model_that_differs_is_told_with_what_differs(message: str, words: str):
    found = why(end(1, message=message), end(0, message=texts.CLOSED))
    assert found.sentence == f"the model is not the same on all ranks: {words}"
    assert "same arguments" in found.fix
    assert found.row == 43


# --- rows 34, 35 and 36: calls, shapes and types -------------------------------------------------------------------


def test_a_crash_of_gloo_over_sizes_is_told_with_the_call_and_the_users_line():
    found = why(end(1, -signal.SIGABRT, last_words=texts.SIZES_ABORT), end(0, -15, stopped=True))
    assert found.sentence.startswith(
        "another rank sent 4000 bytes where this one expected 1000 in all_reduce at train.py:9: its tensor is "
        "smaller, by shape or dtype"
    )
    assert "--env TORCH_DISTRIBUTED_DEBUG=DETAIL" in found.fix
    assert found.row == 35


def test_of_two_ranks_one_that_crashed_in_another_call_than_the_other_waited_in_has_called_another():
    crashed = end(1, -signal.SIGABRT, last_words=texts.SIZES_ABORT)
    trace = texts.in_collective("broadcast", 17, texts.RESET)
    found = why(crashed, end(0, message=texts.RESET, traceback=trace, place="train.py:17"))
    assert found.sentence == "rank 0 was in broadcast at train.py:17, rank 1 in all_reduce at train.py:9"
    assert found.row == 34


def test_of_many_ranks_another_call_elsewhere_proves_nothing():
    crashed = end(1, -signal.SIGABRT, last_words=texts.SIZES_ABORT)
    trace = texts.in_collective("broadcast", 17, texts.RESET)
    found = why(crashed, end(0, message=texts.RESET, traceback=trace), end(2, -15, stopped=True))
    assert found.row == 35


@pytest.mark.parametrize(
    ("message", "row", "words"),
    [
        (texts.DETAIL_SHAPES, 35, "the tensors given to ALLREDUCE differ: Float [4] on rank 0, Float [2] on rank 1"),
        (texts.DETAIL_TYPES, 36, "the tensors given to ALLREDUCE differ: Float [3] on rank 0, Double [3] on rank 1"),
        (texts.DETAIL_CALLS, 34, "rank 0 called ALLREDUCE and rank 1 BROADCAST, as collective 1 that was compared"),
    ],
)
def test_what_torchs_debug_level_says_in_700_characters_is_said_in_one_sentence(message: str, row: int, words: str):
    found = why(end(0, message=message))
    assert found.sentence == words
    assert found.row == row


def waiting(rank: int, call: str, line: int, begun: int | None, words: str = texts.RECV_TIMEOUT) -> RankEnd:
    trace = texts.in_collective(call, line, words)
    return end(rank, message=words, traceback=trace, place=f"train.py:{line}", begun=begun)


@pytest.mark.parametrize("words", [texts.RECV_TIMEOUT, texts.SEND_TIMEOUT])
def test_ranks_that_waited_in_different_calls_of_one_number_have_called_different_collectives(words: str):
    found = why(waiting(0, "all_reduce", 21, 2, words), waiting(1, "barrier", 20, 2, texts.CLOSED))
    assert found.sentence == (
        "rank 0 was in all_reduce at train.py:21, rank 1 in barrier at train.py:20, all as their collective number 2"
    )
    assert found.row == 34


def test_of_many_ranks_the_few_that_called_another_collective_come_last():
    ends = [waiting(rank, "barrier" if rank == 0 else "all_reduce", 20 if rank == 0 else 21, 2) for rank in range(4)]
    assert why(*ends).sentence.startswith(
        "ranks 1, 2, 3 were in all_reduce at train.py:21, rank 0 in barrier at train.py:20"
    )


def test_different_calls_of_different_or_unknown_numbers_prove_nothing():
    for numbers in ((2, 1), (None, 2), (None, None)):
        first, second = waiting(0, "all_reduce", 21, numbers[0]), waiting(1, "barrier", 20, numbers[1])
        assert why(first, second).row != 34


def test_a_rank_that_did_not_come_is_named_by_how_many_collectives_it_had_called():
    found = why(waiting(0, "all_reduce", 54, 2), end(1, -15, stopped=True, begun=1))
    assert found.sentence == (
        "rank 1 had called 1 collective and did not come to number 2, all_reduce at train.py:54, where rank 0 "
        "waited 4 s"
    )
    assert "--hang-after" in found.fix


def test_only_those_that_are_furthest_behind_are_named():
    others = [end(1, -15, stopped=True, begun=4), end(2, -15, stopped=True, begun=3)]
    assert why(waiting(0, "all_reduce", 54, 5), *others).sentence.startswith("rank 2 had called 3 collectives and did")


def test_nobody_is_named_where_a_count_is_not_known_or_all_have_called_as_many():
    for begun in (None, 2):
        found = why(waiting(0, "all_reduce", 54, 2), end(1, -15, stopped=True, begun=begun))
        assert "cannot be told" in found.sentence


def test_ncclss_watchdog_is_a_rank_that_waited_and_not_a_crash_of_its_own():
    tired = end(0, -signal.SIGABRT, last_words=texts.WATCHDOG)
    assert tired.is_symptom
    assert "waited for 600.013 s" in why(tired, end(1, -15, stopped=True)).sentence


# --- rows 40, 41 and 42: leaving -----------------------------------------------------------------------------------


def closed(begun: int | None, rank: int = 0) -> RankEnd:
    return waiting(rank, "all_reduce", 27, begun, texts.CLOSED)


def test_a_rank_that_left_by_sys_exit_is_told_with_the_line():
    found = why(closed(2), early=end(1, 0, left="exit", place="train.py:29", begun=1))
    assert found.sentence == "rank 1 called sys.exit() at train.py:29"
    assert found.row == 41


def test_a_rank_that_left_neither_by_an_exit_nor_at_the_end_was_ended_from_inside():
    found = why(closed(2), early=end(1, 0, begun=1))
    assert "os._exit(0)" in found.sentence
    assert found.row == 41


def test_a_rank_that_came_to_its_end_sooner_had_less_to_do():
    found = why(closed(7), early=end(1, 0, left="end", begun=6))
    assert found.sentence == (
        "rank 1 came to the end of its script after 6 collectives, while rank 0 went on to number 7, all_reduce at "
        "train.py:27: it had less to do, as with fewer batches"
    )
    assert "drop_last=True" in found.fix
    assert found.row == 40


@pytest.mark.parametrize("begun", [(2, 2), (None, 2), (2, None)])
def test_a_rank_that_came_to_its_end_after_as_many_calls_may_have_had_another_shape(begun: tuple[int, int]):
    # gloo's all_reduce of 2 elements against 4 returns on one rank, with a wrong sum, and waits on the other.
    found = why(closed(begun[0]), early=end(1, 0, left="end", begun=begun[1]))
    assert "it left before its peers were through, or its tensor had another shape or dtype" in found.sentence
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in found.fix


def test_rank_0_that_took_the_store_with_it_is_told_so():
    first = end(1, message="Broken pipe", kind="torch.distributed.DistNetworkError")
    found = why(first, early=end(0, 0, left="end", begun=1))
    assert found.sentence == "rank 0 keeps the store through which ranks find each other, and it was gone"
    assert "dist.destroy_process_group()" in found.fix
    assert found.row == 42


# --- row 47: the quiet cause in loud words -------------------------------------------------------------------------


def test_an_exception_of_a_dataloader_worker_is_told_by_its_own_words_and_line():
    found = why(end(message=texts.BAD_SAMPLE, kind="ValueError"))
    assert found.sentence == "DataLoader worker process 0 raised ValueError: bad sample 5 (data.py:7)"


# --- CUDA and NCCL -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "words", "fix"),
    [
        (texts.CUDA_FULL, "GPU 0 of h1 is full: this rank holds 23.6 GB of 23.6 GB, and 22 MB more", "a smaller batch"),
        (texts.CUDA_FULL_FROM_OUTSIDE, "GPU 0 of h1 is full, all 14.8 GB of it, and 496 MB more", "a smaller batch"),
        (texts.CUDA_FRAGMENTED, "of which 9.35 GB lie free in pieces that are too small", "expandable_segments:True"),
        (
            texts.CUDA_SHARED,
            "GPU 1 of h1 is full: this rank holds 18 GB of 79.1 GB, other processes 60 GB",
            "nvidia-smi",
        ),
    ],
)
def test_a_full_gpu_is_told_with_who_holds_it_and_the_fix_for_that(message: str, words: str, fix: str):
    found = why(end(message=message, kind="torch.OutOfMemoryError"))
    assert words in found.sentence
    assert fix in found.fix


def test_two_ranks_on_one_gpu_are_named():
    found = why(end(message=texts.NCCL_DUPLICATE, kind="torch.distributed.DistBackendError"))
    assert found.sentence.startswith("ranks 3 and 0 use the same GPU")
    assert "LOCAL_RANK" in found.fix


def test_nccls_own_reason_is_taken_out_of_its_general_words():
    found = why(end(message=texts.NCCL_SYSTEM, kind="torch.distributed.DistBackendError"))
    assert found.sentence.startswith("NCCL gives as its reason: socketStartConnect: Connect to 10.0.0.2<43519> failed")
    assert "NCCL_DEBUG=INFO" in found.fix


# --- in the verdict ------------------------------------------------------------------------------------------------


def lines(ends: Sequence[RankEnd]) -> tuple[str, ...]:
    return judge(ends, [], start=0.0).lines


def test_the_verdict_tells_the_explanation_and_then_what_to_do():
    told = lines([end(1, message=texts.MODEL_COUNT), end(0, message=texts.CLOSED, time=10.2)])
    assert told[0].startswith("the model is not the same on all ranks")
    assert told[1].startswith("to mend it: build it from the same arguments")
    assert told[2].startswith("1 rank failed after it only because it had gone: rank 0 on h1")


def test_the_verdict_explains_the_cause_and_not_the_loudest():
    loud = end(0, message=texts.CLOSED, time=10.0)
    quiet = end(1, message=texts.ENOSPC, kind="OSError", time=10.4, disks=(disk(),))
    assert lines([loud, quiet])[0].startswith("the disk is full: /ckpt on h2")


def test_a_line_for_lists_of_jobs_has_the_cause_and_the_fix_but_not_the_others():
    ends = [end(1, message=texts.MODEL_COUNT), end(0, message=texts.CLOSED, time=10.2)]
    short = judge(ends, [], start=0.0).in_short
    assert "the model is not the same on all ranks" in short
    assert "; to mend it: build it" in short
    assert "failed after it" not in short


def test_no_explanation_leaves_the_verdict_as_short_as_it_was():
    assert lines([end(0, message="bad sample", kind="ValueError")]) == ()


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 bytes"), (64 * MB, "64 MB"), (3 * GB // 2, "1.5 GB"), (1023 * MB, "1023 MB")]
)
def test_sizes_are_written_as_people_say_them(count: int, words: str):
    assert size(count) == words


def test_no_sentence_begins_with_a_capital_or_ends_with_a_stop_since_it_stands_in_a_line_of_its_own():
    told = [
        why(end(message=texts.ENOSPC)).sentence,
        why(end(status=-9, memory=Memory(group_kills=0))).sentence,
        why(closed(7), early=end(1, 0, left="end", begun=6)).fix,
    ]
    assert not any(re.match(r"[A-Z][a-z]", words) or words.endswith(".") for words in told)


def test_the_page_of_failures_has_every_row_of_the_catalogue():
    page = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
    found: set[int] = set()
    for part in re.findall(r"\(rows? ([\d, andto]+)", page):
        numbers = [int(number) for number in re.findall(r"\d+", part)]
        found.update(range(numbers[0], numbers[1] + 1) if "to" in part else numbers)
    assert found == set(range(1, 53))

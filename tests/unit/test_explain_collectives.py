"""Failures of what ranks do together explained, those of GPUs, and what the verdict makes of an explanation."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

import failure_texts as texts
import pytest
from explaining import disk, end, why

from muster.controller.diagnosis.failure_facts import Memory
from muster.controller.diagnosis.rank_end import RankEnd
from muster.controller.diagnosis.verdict import judge

# --- row 43: the model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (texts.MODEL_SHAPE, "parameter 0 is [5, 4] on rank 1, but another shape on rank 0"),
        (texts.MODEL_COUNT, "rank 1 has 2 parameters, rank 0 has 1"),
    ],
)
def test_a_model_that_differs_is_reported_with_what_differs(message: str, words: str):
    found = why(end(1, message=message), end(0, message=texts.CLOSED))
    assert found.sentence == f"the model differs between ranks: {words}"
    assert "same arguments" in found.fix
    assert found.row == 43


# --- rows 34, 35 and 36: calls, shapes and types -------------------------------------------------------------------


def test_a_crash_of_gloo_over_sizes_is_reported_with_the_call_and_the_users_line():
    found = why(end(1, -signal.SIGABRT, last_words=texts.SIZES_ABORT), end(0, -15, stopped=True))
    assert found.sentence.startswith(
        "another rank sent 4000 bytes, but rank 1 expected 1000 in all_reduce at train.py:9: the tensors differ in "
        "shape or dtype"
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
        (texts.DETAIL_SHAPES, 35, "the tensors passed to ALLREDUCE differ: Float [4] on rank 0, Float [2] on rank 1"),
        (texts.DETAIL_TYPES, 36, "the tensors passed to ALLREDUCE differ: Float [3] on rank 0, Double [3] on rank 1"),
        (texts.DETAIL_CALLS, 34, "rank 0 called ALLREDUCE, but rank 1 called BROADCAST (collective number 1)"),
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
        "rank 1 had called 1 collective and did not reach number 2, all_reduce at train.py:54, where rank 0 waited "
        "for 4 s"
    )
    assert "--hang-after" in found.fix


def test_only_those_that_are_furthest_behind_are_named():
    others = [end(1, -15, stopped=True, begun=4), end(2, -15, stopped=True, begun=3)]
    assert why(waiting(0, "all_reduce", 54, 5), *others).sentence.startswith("rank 2 had called 3 collectives and did")


def test_nobody_is_named_where_a_count_is_not_known_or_all_have_called_as_many():
    for begun in (None, 2):
        found = why(waiting(0, "all_reduce", 54, 2), end(1, -15, stopped=True, begun=begun))
        assert "could not determine" in found.sentence


def test_ncclss_watchdog_is_a_rank_that_waited_and_not_a_crash_of_its_own():
    tired = end(0, -signal.SIGABRT, last_words=texts.WATCHDOG)
    assert tired.is_symptom
    assert "waited for 600.013 s" in why(tired, end(1, -15, stopped=True)).sentence


# --- rows 40, 41 and 42: leaving -----------------------------------------------------------------------------------


def closed(begun: int | None, rank: int = 0) -> RankEnd:
    return waiting(rank, "all_reduce", 27, begun, texts.CLOSED)


def test_a_rank_that_left_by_sys_exit_is_reported_with_the_line():
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
        "rank 1 reached the end of its script after 6 collectives, but rank 0 continued to number 7, all_reduce at "
        "train.py:27: rank 1 probably had fewer batches"
    )
    assert "drop_last=True" in found.fix
    assert found.row == 40


@pytest.mark.parametrize("begun", [(2, 2), (None, 2), (2, None)])
def test_a_rank_that_came_to_its_end_after_as_many_calls_may_have_had_another_shape(begun: tuple[int, int]):
    # gloo's all_reduce of 2 elements against 4 returns on one rank, with a wrong sum, and waits on the other.
    found = why(closed(begun[0]), early=end(1, 0, left="end", begun=begun[1]))
    assert "it left before its peers had finished, or its tensor had another shape or dtype" in found.sentence
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in found.fix


def test_rank_0_that_ended_with_the_store_is_explained():
    first = end(1, message="Broken pipe", kind="torch.distributed.DistNetworkError")
    found = why(first, early=end(0, 0, left="end", begun=1))
    assert (
        found.sentence == "rank 0 hosts the store (TCPStore) where ranks find each other, and rank 0 had already ended"
    )
    assert "dist.destroy_process_group()" in found.fix
    assert found.row == 42


# --- row 47: the quiet cause in loud words -------------------------------------------------------------------------


def test_an_exception_of_a_dataloader_worker_is_reported_with_its_message_and_line():
    found = why(end(message=texts.BAD_SAMPLE, kind="ValueError"))
    assert found.sentence == "DataLoader worker process 0 raised ValueError: bad sample 5 (data.py:7)"


# --- CUDA and NCCL -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "words", "fix"),
    [
        (
            texts.CUDA_FULL,
            "GPU 0 on h1 is out of memory: this rank uses 23.6 GB of 23.6 GB, and the rank",
            "a smaller batch",
        ),
        (
            texts.CUDA_FULL_FROM_OUTSIDE,
            "GPU 0 on h1 is out of memory: all 14.8 GB is in use",
            "a smaller batch",
        ),
        (texts.CUDA_FRAGMENTED, "of which 9.35 GB is free but fragmented", "expandable_segments:True"),
        (
            texts.CUDA_SHARED,
            "GPU 1 on h1 is out of memory: this rank uses 18 GB of 79.1 GB, other processes use 60 GB",
            "nvidia-smi",
        ),
    ],
)
def test_a_full_gpu_is_reported_with_its_users_and_a_fix(message: str, words: str, fix: str):
    found = why(end(message=message, kind="torch.OutOfMemoryError"))
    assert words in found.sentence
    assert fix in found.fix


def test_two_ranks_on_one_gpu_are_named():
    found = why(end(message=texts.NCCL_DUPLICATE, kind="torch.distributed.DistBackendError"))
    assert found.sentence.startswith("ranks 3 and 0 use the same GPU")
    assert "LOCAL_RANK" in found.fix


def test_nccls_own_reason_is_taken_out_of_its_general_words():
    found = why(end(message=texts.NCCL_SYSTEM, kind="torch.distributed.DistBackendError"))
    assert found.sentence.startswith("NCCL reports: socketStartConnect: Connect to 10.0.0.2<43519> failed")
    assert "NCCL_DEBUG=INFO" in found.fix


# --- in the verdict ------------------------------------------------------------------------------------------------


def lines(ends: Sequence[RankEnd]) -> tuple[str, ...]:
    return judge(ends, [], start=0.0).lines


def test_the_verdict_has_the_explanation_and_then_the_fix():
    reported = lines([end(1, message=texts.MODEL_COUNT), end(0, message=texts.CLOSED, time=10.2)])
    assert reported[0].startswith("the model differs between ranks")
    assert reported[1].startswith("Fix: build it from the same arguments")
    assert reported[2].startswith("1 other rank then failed because its connection to rank 1 broke: rank 0")


def test_the_verdict_explains_the_cause_and_not_the_loudest():
    loud = end(0, message=texts.CLOSED, time=10.0)
    quiet = end(1, message=texts.ENOSPC, kind="OSError", time=10.4, disks=(disk(),))
    assert lines([loud, quiet])[0].startswith("the disk is full: /ckpt on h2")


def test_a_line_for_lists_of_jobs_has_the_cause_and_the_fix_but_not_the_others():
    ends = [end(1, message=texts.MODEL_COUNT), end(0, message=texts.CLOSED, time=10.2)]
    short = judge(ends, [], start=0.0).in_short
    assert "the model differs between ranks" in short
    assert "; Fix: build it" in short
    assert "then failed" not in short


def test_no_explanation_leaves_the_verdict_as_short_as_it_was():
    assert lines([end(0, message="bad sample", kind="ValueError")]) == ()


def test_no_sentence_begins_with_a_capital_or_ends_with_a_stop_since_it_stands_in_a_line_of_its_own():
    reported = [
        why(end(message=texts.ENOSPC)).sentence,
        why(end(status=-9, memory=Memory(group_kills=0))).sentence,
        why(closed(7), early=end(1, 0, left="end", begun=6)).fix,
    ]
    assert not any(re.match(r"[A-Z][a-z]", words) or words.endswith(".") for words in reported)


def test_the_page_of_failures_has_every_row_of_the_catalogue():
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    assert [int(number) for number in re.findall(r"^\| (\d+) \| \[", page, re.MULTILINE)] == list(range(1, 53))

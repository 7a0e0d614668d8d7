"""The verdict: which rank failed first and why, in plain words."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest

from muster.controller.diagnosis.failure_facts import Memory
from muster.controller.diagnosis.rank_end import HostLoss, RankEnd
from muster.controller.diagnosis.verdict import Verdict, describe, exit_code_of, is_same_failure, judge

PEER_GONE = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.77.0.2]:43871"


def end(rank: int, status: int = 0, time: float = 10.0, host: str | None = None, **more: object) -> RankEnd:
    return RankEnd(rank=rank, host=host or f"h{rank + 1}", status=status, time=time, **more)  # type: ignore[arg-type]


def verdict(ends: Sequence[RankEnd], losses: Sequence[HostLoss] = ()) -> Verdict:
    return judge(ends, losses, start=0.0)


def test_all_ranks_that_end_with_0_are_a_success():
    result = verdict([end(0), end(1)])
    assert result.ok
    assert result.exit_code == 0


def test_the_first_failure_is_reported_whatever_the_order_of_the_events():
    ends = [end(0, 1, time=12.0, summary="KeyError: 'late'"), end(1, 3, time=11.0, summary="ValueError: early")]
    for order in (ends, ends[::-1]):
        result = verdict(order)
        assert result.sentence.startswith("rank 1 on h2 failed first, 11.0 s after the start: ValueError: early")
        assert result.exit_code == 3
        assert "1 other rank then failed: rank 0 on h1 (KeyError: 'late')" in result.notes[0]


def test_a_failure_that_hits_all_ranks_alike_is_reported_once():
    ends = [end(rank, 1, time=10.0 + rank, summary="ModuleNotFoundError: x", place="train.py:3") for rank in range(4)]
    result = verdict(ends)
    assert result.sentence == (
        "all 4 ranks failed the same way, 10.0 s after the start: ModuleNotFoundError: x (train.py:3)"
    )
    assert result.notes == ()
    assert result.exit_code == 1
    assert verdict(ends[:2]).sentence.startswith("both ranks failed the same way, 10.0 s after the start: ")
    for other in (replace(ends[3], status=-15, stopped=True), replace(ends[3], status=0, summary="")):
        result = verdict([*ends[:3], other])
        assert result.sentence.startswith("rank 0 on h1 failed first")
        assert result.notes[0] == "2 other ranks then failed the same way: ranks 1, 2"
    assert verdict(ends[:1]).sentence.startswith("rank 0 on h1 failed first")


def test_ranks_that_only_lost_their_connections_did_not_fail_the_same_way():
    ends = [end(rank, 1, time=10.0, summary=PEER_GONE, place="train.py:3") for rank in range(3)]
    assert verdict(ends).sentence.startswith("rank 0 on h1 failed first")


def test_a_symptom_does_not_hide_the_cause_that_was_noticed_a_little_later():
    # Rank 0 learns that rank 1 is gone before rank 1's host has reported its end.
    ends = [end(0, 1, time=10.0, summary=PEER_GONE), end(1, -signal.SIGSEGV, time=10.4)]
    result = verdict(ends)
    assert result.sentence.startswith("rank 1 on h2 failed first")
    assert "crashed in native code (SIGSEGV)" in result.sentence
    assert result.exit_code == 128 + signal.SIGSEGV


def test_a_rank_that_closes_its_connections_seconds_before_it_says_why_is_the_cause():
    # Its `finally` tore the process group down and took its time.
    ends = [end(0, 1, time=10.0, summary=PEER_GONE), end(1, 1, time=12.5, summary="ValueError: bad sample")]
    result = verdict(ends)
    assert result.sentence.startswith("rank 1 on h2 failed first, 12.5 s after the start: ValueError: bad sample")
    assert result.notes[0].startswith("1 other rank then failed because its connection to rank 1 broke: rank 0")


def test_an_exception_raised_because_of_a_symptom_is_one_too():
    chained = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in step\n    dist.all_reduce(loss)\n'
        f"{PEER_GONE}\n\nThe above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    raise StepFailed(7)\n'
        "StepFailed: step 7\n"
    )
    ends = [
        end(0, 1, time=10.0, summary="StepFailed: step 7", message="step 7", traceback=chained),
        end(1, 1, time=10.5, summary="ValueError: bad sample"),
    ]
    assert verdict(ends).sentence.startswith("rank 1 on h2 failed first")


def test_a_rank_whose_wait_timed_out_comes_before_those_that_lost_their_connection_to_it():
    tired = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation"
    ends = [end(0, 1, time=10.0, summary=PEER_GONE), end(1, 1, time=10.1, summary=tired)]
    assert verdict(ends).sentence.startswith("rank 1 on h2 failed first")


def test_a_symptom_long_before_any_other_failure_is_reported_first():
    ends = [end(0, 1, time=10.0, summary=PEER_GONE), end(1, 1, time=40.0, summary="ValueError: unrelated")]
    assert verdict(ends).sentence.startswith("rank 0 on h1 failed first")


@pytest.mark.parametrize(
    "text",
    [
        PEER_GONE,
        "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Read error [10.77.0.2]:43871: Connection reset by peer",
        "RuntimeError: [enforce fail at pair.cc] . Broken pipe",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "torch.distributed.DistBackendError: ncclRemoteError: A call failed possibly due to a network error",
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:82] Timed out waiting 1800000ms for recv operation",
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda/0",
    ],
)
def test_what_survivors_say_of_a_dead_peer_is_a_symptom(text: str):
    assert end(0, 1, summary=text).is_symptom


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: bad sample",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "AssertionError",
        "FileNotFoundError: [Errno 2] No such file or directory: 'peer.csv'",
        "",
    ],
)
def test_a_failure_of_ones_own_is_no_symptom(text: str):
    assert not end(0, 1, summary=text).is_symptom


def test_a_clean_exit_while_others_still_need_the_rank_is_reported_as_the_cause():
    ends = [end(0, 1, time=12.0, summary=PEER_GONE), end(1, 0, time=11.5), end(2, -15, time=13.0, stopped=True)]
    result = verdict(ends)
    assert re.match("rank 1 on h2 (had )?ended with exit code 0, 11.5 s after the start", result.sentence)
    assert "while other ranks still needed it" in result.sentence
    assert "rank 0 on h1" in result.sentence
    assert result.exit_code == 1


def test_the_line_of_a_sys_exit_that_others_suffer_from_is_in_the_first_sentence():
    early = end(1, 0, time=11.5, left="exit", place="early.py:21")
    result = verdict([end(0, 1, time=12.0, summary=PEER_GONE, place="early.py:12"), early])
    assert result.sentence == (
        "rank 1 on h2 ended with exit code 0, 11.5 s after the start, while other ranks still needed it: "
        "rank 1 called sys.exit() at early.py:21; then rank 0 on h1 lost its connection at early.py:12"
    )
    assert [line for line in result.lines if "sys.exit" in line] == []
    assert result.fix.startswith("exit on all ranks together")


def test_a_clean_exit_long_after_the_failure_is_not_blamed():
    ends = [end(0, 1, time=10.0, summary=PEER_GONE), end(1, 0, time=15.0)]
    assert verdict(ends).sentence.startswith("rank 0 on h1 failed first")


def test_a_clean_exit_is_not_blamed_for_a_failure_of_somebody_elses_own():
    ends = [end(0, 1, time=12.0, summary="ValueError: x"), end(1, 0, time=3.0)]
    assert verdict(ends).sentence.startswith("rank 0 on h1 failed first")


def test_ranks_that_muster_stopped_are_no_failures():
    ends = [
        end(0, -signal.SIGTERM, time=10.1, stopped=True),
        end(1, 7, time=10.0),
        end(2, -signal.SIGKILL, time=15.0, stopped=True),
        end(3, 143, time=10.2, stopped=True),
    ]
    result = verdict(ends)
    assert result.sentence.startswith("rank 1 on h2 failed first")
    assert result.exit_code == 7
    assert result.notes == ("3 other ranks were then stopped by Muster",)


def test_the_traceback_stands_below_the_sentence_and_the_last_words_where_there_is_none():
    assert verdict([end(0, 1, summary="ValueError: x", traceback="Traceback ...", last_words="w")]).detail == (
        "Traceback ..."
    )
    assert verdict([end(0, -11, last_words="Fatal Python error: Segmentation fault")]).detail == (
        "Fatal Python error: Segmentation fault"
    )


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        (end(0, 1, summary="ValueError: x", place="train.py:12"), "ValueError: x (train.py:12)"),
        (end(0, 3, place="train.py:7"), "ended with exit code 3 at train.py:7"),
        (end(0, 3), "ended with exit code 3 without an exception"),
        (end(0, 1, summary="no data here", place="train.py:7"), "no data here (train.py:7)"),
        (end(0, -9, memory=Memory(group_kills=1)), "out of memory, killed by the OOM killer (SIGKILL)"),
        (end(0, -9, memory=Memory(host_kills=1)), "out of memory, killed by the OOM killer (SIGKILL)"),
        (
            end(0, -9, memory=Memory(group_kills=0, host_kills=1)),
            "out of memory, probably killed by the OOM killer (SIGKILL)",
        ),
        (end(0, -9), "killed by SIGKILL, not sent by Muster"),
        (end(0, -9, memory=Memory()), "killed by SIGKILL, not sent by Muster"),
        (end(0, -signal.SIGSEGV), "crashed in native code (SIGSEGV)"),
        (end(0, -signal.SIGABRT), "crashed in native code (SIGABRT)"),
        (end(0, -signal.SIGBUS), "crashed in native code (SIGBUS)"),
        (end(0, -signal.SIGTERM), "ended by SIGTERM, not sent by Muster"),
        (end(0, -signal.SIGINT), "ended by SIGINT, not sent by Muster"),
        # Muster's SIGTERM met it on its way out, after its own exception.
        (end(0, -signal.SIGTERM, summary="ValueError: x", place="train.py:3"), "ValueError: x (train.py:3)"),
        (end(0, -63), "ended by signal 63, not sent by Muster"),
    ],
)
def test_what_happened_is_said_in_plain_words(failed: RankEnd, words: str):
    assert describe(failed) == words


def test_a_kill_that_was_not_for_memory_is_not_called_one():
    words = describe(end(0, -signal.SIGKILL, memory=Memory(group_kills=0)))
    assert words == "killed by SIGKILL, sent by neither Muster nor the OOM killer"


@pytest.mark.parametrize(("status", "code"), [(0, 0), (7, 7), (255, 255), (-9, 137), (-11, 139), (-15, 143)])
def test_the_exit_code_is_the_scripts_own_as_a_shell_would_show_it(status: int, code: int):
    assert exit_code_of(status) == code


def test_a_lost_host_is_named_and_ranks_elsewhere_that_failed_of_it_are_not_the_cause():
    # The loss is noticed seconds after the survivors got their broken connections.
    ends = [end(0, 1, time=10.0, summary=PEER_GONE, host="h1")]
    result = verdict(ends, [HostLoss(host="h2", why="no message from it for 5 s", time=15.0)])
    assert result.sentence == "host h2 is lost: no message from it for 5 s"
    assert result.exit_code == 125
    assert "rank 0 on h1" in result.notes[0]
    assert result.fix.startswith("check that it is up")


def test_of_two_lost_hosts_the_first_is_named():
    losses = [HostLoss(host="h2", why="later", time=16.0), HostLoss(host="h1", why="first", time=15.0)]
    assert verdict([], losses).sentence == "host h1 is lost: first"


def test_of_two_lost_hosts_the_one_whose_rank_failed_first_is_named():
    killed = "the process that starts its ranks was killed"
    losses = [HostLoss(host=host, why=killed, time=time, is_up=True) for host, time in (("h1", 15.0), ("h2", 15.1))]
    result = verdict([end(0, -9, time=14.2), end(1, -9, time=14.1)], losses)
    assert result.exit_code == 125
    assert result.sentence == f"the job cannot continue on h2: {killed}"


def test_a_killed_agent_is_why_mpirun_ends_all_others():
    losses = [
        HostLoss(host="h1", why="its agent died", time=15.0),
        HostLoss(host="h3", why="its agent was killed by SIGKILL", time=15.1, ends_all=True),
    ]
    ends = [end(0, -signal.SIGTERM, time=14.0), end(1, -signal.SIGTERM, time=14.1)]
    result = verdict(ends, losses)
    assert result.exit_code == 125
    assert result.sentence == "host h3 is lost: its agent was killed by SIGKILL"
    assert result.fix == "run it again; `dmesg` on h3 shows whether the OOM killer ended the process"
    assert verdict([*ends, end(3, 1, time=13.0, summary="ValueError: bad")], losses).exit_code == 1


def test_a_rank_that_failed_of_its_own_before_a_host_was_lost_is_the_cause():
    ends = [end(0, 1, time=10.0, summary="ValueError: bad", host="h1")]
    result = verdict(ends, [HostLoss(host="h2", why="connection lost", time=12.0)])
    assert "ValueError: bad" in result.sentence
    assert result.exit_code == 1


def test_a_host_lost_without_any_failed_rank_is_not_a_success():
    result = verdict([end(0), end(1)], [HostLoss(host="h2", why="its agent died", time=9.0)])
    assert not result.ok


def fail_at(place: str, summary: str, done: int) -> Verdict:
    return verdict([end(1, 1, summary=summary, place=place, done=done), end(0, -15, stopped=True, done=done + 1)])


def test_the_same_failure_at_the_same_place_after_as_much_work_is_recognised():
    first = fail_at("train.py:12", "ValueError: x", 3)
    assert is_same_failure(first, fail_at("train.py:12", "ValueError: x", 3))


def test_a_job_that_resumed_and_failed_after_other_work_is_worth_another_try():
    assert not is_same_failure(fail_at("train.py:12", "OSError: x", 900), fail_at("train.py:12", "OSError: x", 400))


@pytest.mark.parametrize(
    ("place", "summary", "done"),
    [("train.py:12", "ValueError: x", 4), ("train.py:13", "ValueError: x", 3), ("train.py:12", "KeyError: x", 3)],
)
def test_another_failure_or_one_that_came_further_is_worth_another_try(place: str, summary: str, done: int):
    assert not is_same_failure(fail_at("train.py:12", "ValueError: x", 3), fail_at(place, summary, done))


def test_a_failure_of_the_script_can_be_tried_again():
    assert fail_at("train.py:1", "x", 0).can_restart


def test_many_followers_are_counted_and_only_the_first_few_described():
    ends = [end(0, 1, time=1.0, summary="ValueError: x")]
    ends += [replace(end(rank, 1, time=2.0 + rank), summary=PEER_GONE * 3) for rank in range(1, 40)]
    (note,) = verdict(ends).notes
    assert note.startswith("39 other ranks then failed because their connections to rank")
    assert len(note) < 700


def test_what_ranks_have_called_says_more_than_what_their_ends_tell():
    told = "ranks 0, 2 call all_reduce (train.py:3) as collective number 2, but rank 1 on h2 calls barrier (train.py:4)"
    result = verdict([end(0, 1, summary=PEER_GONE)]).after(told)
    assert result.sentence.startswith(f"{told}; then rank 0 on h1 failed first")
    assert result.lines == (
        "Fix: call the same collectives in the same order on all ranks, with tensors of one shape and dtype",
    )


def test_a_host_whose_zygote_the_oom_killer_ended_is_not_reported_as_unreachable():
    """Under the memory limit of a PBS job, the kernel may choose the zygote; its ranks end with it."""
    killed = end(1, -9, memory=Memory(group_kills=1, limit=256 << 20, peak=256 << 20), inside="pbs")
    loss = HostLoss(host="h2", why="the process that starts its ranks was killed", time=11.0, is_up=True)
    result = verdict([end(0), killed], [loss])
    assert result.why == (
        "the OOM killer killed the process that starts the ranks because its PBS job on h2 reached its memory limit of "
        "256 MB"
    )
    assert "request more memory (`muster submit --mem 64G`" in result.fix
    unknown = verdict([end(0), end(1, -9, memory=Memory(group_kills=0))], [loss])
    assert not unknown.why
    assert "`dmesg` on h2" in unknown.fix

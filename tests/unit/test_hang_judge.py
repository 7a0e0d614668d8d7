"""Which rank hangs a job, and how that is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from effort import growth
from hanging import (
    C10D,
    IN_COLLECTIVE,
    LOADER,
    TORCH,
    WORKER,
    call,
    elsewhere,
    frame,
    group,
    job,
    silent,
    waiting,
)

from muster.controller.monitor.hang import judge, last_calls_differ, working
from muster.controller.monitor.hang_text import detail, sentence, sentence_of_differing, still_working
from muster.controller.monitor.observation import Child, Group, Seen, last_seen_at


def said(*ranks: Seen) -> str:
    finding = judge(job(*ranks))
    return sentence(finding, job(*ranks)) if finding is not None else ""


def culprits(*ranks: Seen) -> tuple[int, ...]:
    finding = judge(job(*ranks))
    return finding.culprits if finding is not None else ()


def test_a_rank_that_never_arrives_is_named_with_its_line_and_the_collective_the_others_wait_in():
    assert said(waiting(0), waiting(1), elsewhere(2), waiting(3)) == (
        "ranks 0, 1, 3 are waiting in all_reduce number 102 (train.py:88); rank 2 on b has been in next_batch "
        "(data.py:33) for 31 s"
    )


def test_the_stack_of_the_named_rank_is_shown_from_its_innermost_call():
    ranks = job(waiting(0), waiting(1), elsewhere(2), waiting(3))
    finding = judge(ranks)
    assert finding is not None
    assert detail(finding, ranks).splitlines() == [
        "rank 2 on b, most recent call first:",
        '  File "/home/me/data.py", line 33, in next_batch',
        '  File "/home/me/train.py", line 80, in step',
    ]


@pytest.mark.parametrize("culprit", range(4))
def test_any_rank_can_be_the_one(culprit: int):
    ranks = [elsewhere(rank) if rank == culprit else waiting(rank) for rank in range(4)]
    assert culprits(*ranks) == (culprit,)


def test_several_ranks_at_one_place_share_a_clause():
    assert said(waiting(0), elsewhere(1), elsewhere(2), waiting(3)).endswith(
        "; ranks 1, 2 have been in next_batch (data.py:33) for 31 s"
    )


def test_ranks_that_wait_in_nothing_do_not_hang():
    assert judge(job(*(elsewhere(rank) for rank in range(4)))) is None


def test_a_rank_that_is_waited_for_and_works_is_no_hang():
    ranks = job(waiting(0), waiting(1), elsewhere(2, works=True, cpu=1.0), waiting(3))
    assert judge(ranks) is None
    waits, busy = working(ranks)
    assert busy == (2,)
    assert still_working(waits, [ranks[2]]) == (
        "ranks 0, 1, 3 are waiting; rank 2 on b has been working for 31 s in next_batch (data.py:33), using 1.0 CPUs. "
        "Muster does not report a hang while a rank works"
    )


def test_one_of_two_late_ranks_that_works_is_no_hang():
    assert judge(job(waiting(0), elsewhere(1), elsewhere(2, works=True), waiting(3))) is None


def test_a_waiting_rank_that_spins_does_not_excuse_the_one_it_waits_for():
    assert culprits(waiting(0, works=True), waiting(1, works=True), elsewhere(2), waiting(3, works=True)) == (2,)


# --- ranks that cannot answer -------------------------------------------------------------------------------------


def test_a_rank_that_holds_the_lock_in_c_is_named_even_if_it_uses_the_cpu():
    spins = silent(2, works=True, cpu=1.0, state="R", frames=(frame("train.py:30", "match"),))
    assert said(waiting(0), waiting(1), spins, waiting(3)) == (
        "ranks 0, 1, 3 are waiting in all_reduce number 102 (train.py:88); "
        "rank 2 on b has held the GIL in C code for 31 s, in match (train.py:30)"
    )


def test_a_lock_holder_whose_stack_did_not_come_is_named_without_a_line():
    assert "rank 2 on b has held the GIL in C code for 31 s, at an unknown line" in said(
        waiting(0), waiting(1), silent(2), waiting(3)
    )


def test_a_stopped_rank_is_named_with_where_it_was_last_seen():
    stopped = silent(2, state="T", last_place="train.py:88 in step")
    assert said(waiting(0), waiting(1), stopped, waiting(3)).endswith(
        "; rank 2 on b has been stopped (SIGSTOP) for 31 s, last seen at train.py:88 in step"
    )


def test_a_rank_stopped_inside_the_collective_is_the_cause_of_it():
    assert culprits(waiting(0), waiting(1), silent(2, state="T", begun=102), waiting(3)) == (2,)


def test_a_frozen_control_group_is_distinguished_from_a_disk_that_does_not_answer():
    frozen = silent(2, state="D", wchan="__refrigerator")
    assert "rank 2 on b has been frozen by a cgroup for" in said(waiting(0), waiting(1), frozen, waiting(3))
    disk = elsewhere(2, state="D", wchan="rpc_wait_bit_killable")
    assert "rank 2 on b has been in disk sleep (rpc_wait_bit_killable) for 31 s in next_batch (data.py:33)" in said(
        waiting(0), waiting(1), disk, waiting(3)
    )


def test_a_silent_rank_and_one_that_is_late_are_both_named():
    assert culprits(waiting(0), elsewhere(1), silent(2, state="T"), waiting(3)) == (1, 2)


def test_a_rank_that_left_with_code_0_is_named():
    left = Seen(rank=2, host="b", exit_status=0, begun=101)
    assert said(waiting(0), waiting(1), left, waiting(3)).endswith(
        "rank 2 on b exited with exit code 0 and can no longer join"
    )


def test_a_rank_that_left_before_init_process_group_is_named():
    left = Seen(rank=1, host="a", exit_status=0)
    assert said(joining(0), left, joining(2)).endswith("rank 1 on a exited with exit code 0 and can no longer join")


def test_a_rank_that_left_after_it_had_called_all_is_not_blamed_for_one_that_sleeps():
    assert culprits(waiting(0), Seen(rank=1, host="a", exit_status=0, begun=102), elsewhere(2), waiting(3)) == (2,)


# --- data loaders -------------------------------------------------------------------------------------------------

IN_LOADER = (
    frame(f"{LOADER}:1291", "_try_get_data"),
    frame(f"{LOADER}:1400", "_next_data"),
    frame("train.py:20", "main"),
)


def worker(pid: int, *own: str, state: str = "S") -> Child:
    return Child(
        pid=pid,
        state=state,
        frames=(*(frame(place, "__getitem__") for place in own), frame(f"{WORKER}:374", "_worker_loop"), *IN_LOADER),
    )


def test_the_worker_process_that_is_stuck_is_named_with_its_line():
    loads = elsewhere(2, frames=IN_LOADER, children=(worker(70), worker(71, "data.py:33")))
    assert said(waiting(0), waiting(1), loads, waiting(3)).endswith(
        "rank 2 on b has been waiting for its DataLoader for 31 s in main (train.py:20); "
        "its worker process 71 is in __getitem__ (data.py:33)"
    )


def test_a_stopped_worker_is_reported_as_such():
    loads = elsewhere(2, frames=IN_LOADER, children=(worker(70, state="T"), worker(71)))
    assert "; its worker process 70 is stopped (SIGSTOP)" in said(waiting(0), waiting(1), loads, waiting(3))


def test_workers_that_cannot_be_looked_into_are_listed():
    loads = elsewhere(2, frames=IN_LOADER, children=(Child(pid=70), Child(pid=71)))
    assert "; could not inspect its processes 70, 71" in said(waiting(0), waiting(1), loads, waiting(3))


def test_a_loader_without_working_workers_is_reported_as_such():
    loads = elsewhere(2, frames=IN_LOADER, children=(worker(70), worker(71)))
    assert "; none of its workers is running user code" in said(waiting(0), waiting(1), loads, waiting(3))


def test_several_ranks_that_wait_for_their_loaders_share_a_clause_in_the_plural():
    load = [elsewhere(rank, frames=IN_LOADER, children=(worker(70),)) for rank in (1, 2)]
    assert said(waiting(0), *load, waiting(3)).endswith(
        "ranks 1, 2 have been waiting for their DataLoaders for 31 s in main (train.py:20); "
        "none of their workers is running user code"
    )


# --- different calls ----------------------------------------------------------------------------------------------


def test_another_operation_under_the_same_number_names_the_minority():
    odd = waiting(2, op="broadcast", at="train.py:90")
    assert said(waiting(0), waiting(1), odd, waiting(3)) == (
        "ranks 0, 1, 3 call all_reduce (train.py:88) as collective number 102, "
        "but rank 2 on b calls broadcast (train.py:90)"
    )


def test_another_shape_or_type_is_shown_with_both():
    odd = waiting(2, as_call={"sizes": ((4,),), "types": ("Double",)})
    assert said(waiting(0), waiting(1), odd, waiting(3)) == (
        "ranks 0, 1, 3 call all_reduce of 8 Float (train.py:88) as collective number 102, "
        "but rank 2 on b calls all_reduce of 4 Double (train.py:88)"
    )


def test_of_two_ranks_that_differ_neither_is_accused():
    ranks = job(waiting(0), waiting(1, op="broadcast", at="train.py:90"))
    finding = judge(ranks)
    assert finding is not None
    assert finding.culprits == ()
    assert sentence(finding, ranks) == (
        "rank 0 calls all_reduce (train.py:88) but rank 1 calls broadcast (train.py:90) as collective number 102, "
        "which can never finish"
    )


def test_a_rank_that_has_gone_on_after_its_other_operation_is_still_the_one():
    calls = {"0": group(call(101), call(102, "broadcast", place=frame("train.py:90")))}
    gone_on = elsewhere(2, groups=calls)
    assert said(waiting(0), waiting(1), gone_on, waiting(3)).endswith("but rank 2 on b calls broadcast (train.py:90)")


def test_gathers_of_different_sizes_are_allowed():
    ranks = [waiting(rank, op="all_to_all", as_call={"sizes": ((rank,),)}) for rank in range(4)]
    finding = judge(job(*ranks))
    assert finding is not None
    assert (finding.culprits, finding.differing) == ((), None)


def test_what_finished_long_ago_is_not_compared():
    old = {"0": group(call(100, "barrier"), call(101))}
    assert culprits(waiting(0), waiting(1), elsewhere(2, groups=old), waiting(3)) == (2,)


def test_after_an_abort_the_last_calls_of_the_others_show_which_rank_differed():
    def left(rank: int, size: int, place: str) -> Seen:
        groups = {"0": group(call(101), call(102, sizes=((size,),)))}
        return Seen(rank=rank, host="ab"[rank // 2], groups=last_seen_at(place, groups))

    ranks = job(left(0, 8, "train.py:88"), Seen(rank=1, host="a"), left(2, 4, "train.py:90"), left(3, 8, "train.py:88"))
    found = last_calls_differ(ranks)
    assert found is not None
    assert found.odd == (2,)
    assert sentence_of_differing(found, ranks) == (
        "ranks 0, 3 call all_reduce of 8 Float (train.py:88) as collective number 102, "
        "but rank 2 on b calls all_reduce of 4 Float (train.py:90)"
    )


def test_after_an_abort_equal_calls_accuse_nobody():
    ranks = job(*(Seen(rank=rank, host="a", groups={"0": group(call(102))}) for rank in range(4)))
    assert last_calls_differ(ranks) is None


# --- groups, chains, circles --------------------------------------------------------------------------------------


def in_group(rank: int, name: str, members: tuple[int, ...], *, other: str = "0") -> Seen:
    groups = {other: group(call(101)), name: group(call(5, over=False), ranks=members)}
    return waiting(rank, groups=groups, at="train.py:70")


def test_a_chain_of_waiting_is_followed_to_its_end():
    """0 and 2 wait in the group of all for 3, which waits in its own group for 1, which is elsewhere."""
    asleep = elsewhere(1, groups={"0": group(call(101)), "2": group(call(4), ranks=(1, 3))})
    assert said(waiting(0), asleep, waiting(2), in_group(3, "2", (1, 3))) == (
        "ranks 0, 2 are waiting in all_reduce number 102 (train.py:88); "
        "rank 3 is waiting in all_reduce number 5 of the group of ranks 1, 3 (train.py:70); "
        "rank 1 on a has been in next_batch (data.py:33) for 31 s"
    )


def test_a_group_of_others_is_not_waited_for():
    """2 and 3 hang in their group; 0 and 1 work on in theirs and are no excuse."""
    busy = [elsewhere(rank, works=True, quiet=0.1) for rank in (0, 1)]
    late = elsewhere(3, groups={"0": group(call(101))})
    assert culprits(*busy, in_group(2, "1", (2, 3)), late) == (3,)


def test_ranks_that_wait_for_each_other_in_two_groups_are_a_circle():
    def one(rank: int, mine: str, other: str) -> Seen:
        groups = {mine: group(call(5, over=False), ranks=(0, 1)), other: group(call(4), ranks=(0, 1))}
        return waiting(rank, groups=groups)

    finding = judge(job(one(0, "1", "2"), one(1, "2", "1")))
    assert finding is not None
    assert (finding.culprits, finding.circle) == ((), (0, 1))
    assert "ranks 0, 1 are waiting for each other, which is a deadlock" in said(one(0, "1", "2"), one(1, "2", "1"))


def test_a_collective_that_all_have_called_alike_accuses_nobody():
    finding = judge(job(*(waiting(rank) for rank in range(4))))
    assert finding is not None
    assert finding.culprits == ()
    assert said(*(waiting(rank) for rank in range(4))) == (
        "ranks 0-3 are waiting in all_reduce number 102 (train.py:88); all ranks have made this call, but it has "
        "not finished "
        "for 31 s; the network or the backend is blocking it, not a rank"
    )


def test_one_that_still_waits_in_the_call_before_is_no_culprit():
    """A broadcast's source continues at once; the rank that waits for its data has called all it could."""
    slow = waiting(2, number=101)
    finding = judge(job(waiting(0), waiting(1), slow, waiting(3)))
    assert finding is not None
    assert finding.culprits == ()


def test_a_group_whose_members_are_unknown_accuses_nobody():
    alone = waiting(0, groups={"7": replace(group(call(5, over=False)), ranks=None)})
    assert said(alone, elsewhere(1)).endswith("could not determine which rank is the cause")


# --- without a recorder -------------------------------------------------------------------------------------------


def receiving(rank: int, peer: int | None, **more: object) -> Seen:
    frames = (frame(f"{C10D}:2500", "recv"), *IN_COLLECTIVE[1:], frame("pipe.py:12", "forward"))
    return elsewhere(rank, frames=frames, peer=peer, **more)


def test_a_rank_that_receives_names_the_one_that_should_send():
    assert said(elsewhere(0), receiving(1, 0)) == (
        "rank 1 is waiting for data from rank 0 (pipe.py:12); rank 0 on a has been in next_batch (data.py:33) for 31 s"
    )


def test_a_rank_that_receives_again_and_again_does_not_hang():
    assert judge(job(elsewhere(0), receiving(1, 0, switches=400.0))) is None


def test_a_call_of_which_nothing_is_known_accuses_nobody():
    assert said(elsewhere(0), receiving(1, None)) == (
        "rank 1 is waiting in recv (pipe.py:12); could not determine which rank is the cause"
    )


def test_a_rank_that_waits_for_an_asynchronous_receive_is_not_the_cause():
    """No recorder shows for which rank it waits: it is not named, but the one that all others wait for is."""
    waits = elsewhere(3, at="pipe.py:12", function="forward", waits_for_work=True)
    assert culprits(waiting(0), waiting(1), elsewhere(2), waits) == (2,)
    assert "rank 3 is waiting in wait (pipe.py:12)" in said(waiting(0), waiting(1), elsewhere(2), waits)


def test_where_the_backend_records_send_and_recv_the_peer_is_known():
    stuck = {"0": replace(group(call(101)), peers=(2,))}
    waits = elsewhere(3, groups=stuck, at="pipe.py:12")
    assert said(elsewhere(2), waits).startswith(
        "rank 3 is waiting for data from rank 2 (pipe.py:12); rank 2 on b has been in"
    )


def test_of_several_ranks_that_are_not_in_new_group_none_is_accused():
    frames = (frame(f"{C10D}:55", "new_group"), frame("train.py:9", "main"))
    assert culprits(elsewhere(0, frames=frames), elsewhere(1), elsewhere(2)) == ()


def test_a_rank_that_never_comes_to_new_group_is_named():
    frames = (
        frame(f"{C10D}:700", "_store_based_barrier"),
        frame(f"{C10D}:55", "new_group"),
        frame("train.py:9", "main"),
    )
    waits = [elsewhere(rank, frames=frames) for rank in (0, 1, 3)]
    assert said(*waits, elsewhere(2)) == (
        "ranks 0, 1, 3 are waiting in new_group (train.py:9); rank 2 on b has been in next_batch (data.py:33) for 31 s"
    )


def in_call(rank: int, function: str) -> Seen:
    return elsewhere(rank, frames=(frame(f"{C10D}:55", function), frame("train.py:9", "main")))


UNSEEN: dict[str, list[Seen]] = {
    "monitored_barrier": [in_call(rank, "monitored_barrier") for rank in (0, 1, 3)],
    "the wait of an irecv": [elsewhere(1, waits_for_work=True), elsewhere(0), elsewhere(3)],
    "recv from any rank": [receiving(1, None), elsewhere(0), elsewhere(3)],
    "new_group": [in_call(0, "new_group"), elsewhere(1), elsewhere(3)],
    "new_group, which only one has not called": [in_call(rank, "new_group") for rank in (0, 1, 3)],
    "a group whose members are unknown": [
        waiting(0, groups={"7": replace(group(call(5, over=False)), ranks=None)}),
        elsewhere(1),
        elsewhere(3),
    ],
    "a second init_process_group": [elsewhere(0, joining=True), elsewhere(1), elsewhere(3)],
}


@pytest.mark.parametrize("case", UNSEEN)
def test_a_rank_that_works_is_no_hang_also_where_nobody_sees_whom_the_others_wait_for(case: str):
    ranks = job(*UNSEEN[case], elsewhere(2, works=True, cpu=1.0))
    assert judge(ranks) is None
    assert working(ranks)[1] == (2,), "it is mentioned after minutes"
    assert judge(job(*UNSEEN[case], elsewhere(2))) is not None, "nobody works"


@pytest.mark.parametrize("case", UNSEEN)
@pytest.mark.parametrize("more", [{"state": "T"}, {"answered": False}], ids=["stopped", "holds the lock"])
def test_a_rank_that_cannot_go_on_is_no_excuse_for_what_it_used_before(case: str, more: dict[str, Any]):
    ranks = job(*UNSEEN[case], elsewhere(2, works=True, **more))
    assert judge(ranks) is not None
    assert working(ranks)[1] == ()


def test_a_rank_that_works_inside_another_call_may_be_the_one_that_new_group_waits_for():
    packs = replace(in_call(1, "all_gather_object"), works=True)
    assert judge(job(in_call(0, "new_group"), packs, elsewhere(2), in_call(3, "new_group"))) is None


def test_a_rank_that_works_is_no_excuse_where_all_have_called_the_collective():
    others = [elsewhere(rank, works=True) for rank in (2, 3)]
    finding = judge(job(in_group(0, "1", (0, 1)), in_group(1, "1", (0, 1)), *others))
    assert finding is not None
    assert finding.culprits == ()


def test_a_rank_that_computes_inside_torch_distributed_does_not_wait():
    fsdp = (
        frame(f"{TORCH}nn/modules/linear.py:134", "forward"),
        frame(f"{TORCH}distributed/fsdp/_fully_shard/_fsdp_state.py:90", "fsdp_hook_wrapper"),
        frame("train.py:40", "step"),
    )
    assert judge(job(waiting(0), elsewhere(1, frames=fsdp, works=True))) is None


def joining(rank: int) -> Seen:
    frames = (frame(f"{C10D}:1800", "init_process_group"), frame("train.py:5", "main"))
    return Seen(rank=rank, host="a", quiet=31, joining=True, answered=None, frames=frames)


def test_a_rank_that_never_comes_to_init_process_group_is_named():
    asleep = Seen(rank=1, host="a", answered=None, frames=(frame("train.py:3", "read_config"),))
    assert said(joining(0), asleep) == (
        "rank 0 is waiting in init_process_group (train.py:5); rank 1 on a has been in read_config (train.py:3) "
        "for 31 s"
    )


# --- thousands of ranks -------------------------------------------------------------------------------------------


def all_but_one_wait(count: int) -> list[Seen]:
    members = tuple(range(count))
    calls = [{"0": group(call(101), call(102, over=False), ranks=members)} for _ in members[1:]]
    return [elsewhere(0), *(waiting(rank, groups=calls[rank - 1]) for rank in members[1:])]


def half_are_late(count: int) -> list[Seen]:
    groups = {"0": Group(ranks=None, calls=(call(101), call(102, over=False)))}
    return [elsewhere(rank) if rank % 2 else waiting(rank, groups=groups) for rank in range(count)]


def in_a_large_group_of_half_of_them(count: int) -> list[Seen]:
    members = tuple(range(0, count, 2))
    groups = {"0": group(call(101)), "5": group(call(3, over=False), ranks=members)}
    return [elsewhere(rank) if rank % 2 or not rank else waiting(rank, groups=groups) for rank in range(count)]


def half_call_something_else(count: int) -> list[Seen]:
    members = tuple(range(count))
    ops = ("all_reduce", "broadcast", "all_reduce")
    groups = {op: {"0": group(call(101), call(102, op, over=False), ranks=members)} for op in ops}
    return [waiting(rank, groups=groups[ops[rank % 3]]) for rank in members]


LARGE: dict[str, Callable[[int], list[Seen]]] = {
    "all but one wait in a collective": all_but_one_wait,
    "half of them are late": half_are_late,
    "a group of half of them": in_a_large_group_of_half_of_them,
    "many call something else": half_call_something_else,
    "half of them join": lambda count: [
        joining(rank) if rank % 2 else Seen(rank=rank, host="a", answered=None) for rank in range(count)
    ],
    "new_group": lambda count: [
        elsewhere(0),
        *(replace(in_call(1, "new_group"), rank=rank) for rank in range(1, count)),
    ],
    "each receives from the next one": lambda count: [
        *(replace(receiving(0, rank + 1), rank=rank) for rank in range(count - 1)),
        replace(in_call(1, "monitored_barrier"), rank=count - 1),
    ],
    "each receives from the one before": lambda count: [
        *(replace(receiving(0, rank - 1), rank=rank) for rank in range(1, count)),
        replace(in_call(1, "monitored_barrier"), rank=0),
    ],
}


@pytest.mark.parametrize("case", LARGE)
def test_the_work_of_a_judgement_grows_with_the_ranks_and_not_with_their_square(case: str):
    def judged(count: int) -> Callable[[], object]:
        ranks = job(*LARGE[case](count))
        return lambda: (finding := judge(ranks)) and (sentence(finding, ranks), detail(finding, ranks), working(ranks))

    assert judged(512)(), "there is something to find"
    assert growth(judged, 256, 1024) < 6  # four times the ranks


@pytest.mark.parametrize("case", ["all but one wait in a collective", "many call something else"])
def test_so_does_that_of_comparing_the_last_calls(case: str):
    def compared(count: int) -> Callable[[], object]:
        ranks = job(*LARGE[case](count))
        return lambda: (found := last_calls_differ(ranks)) and sentence_of_differing(found, ranks)

    assert growth(compared, 256, 1024) < 6

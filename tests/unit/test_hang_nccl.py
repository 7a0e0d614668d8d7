"""Entries that NCCL's recorder never closes do not mislead the judge; they are as in torch's own tests."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from muster.controller.monitor.hang import judge
from muster.controller.monitor.observation import Group, Seen, groups_of
from muster.rank import torch_adapter

Entry = dict[str, Any]
Read = Callable[..., Group]


def entry(name: str, *, number: int = 0, p2p: int = 0, over: bool = True, group: int = 0, **more: Any) -> Entry:
    is_p2p = name.startswith(("send", "recv")) or (p2p > 0 and name == "coalesced")
    return {
        "process_group": (str(group), "default_pg"),
        "pg_id": group,
        "collective_seq_id": number,
        "p2p_seq_id": p2p,
        "profiling_name": f"nccl:{name}",
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "state": "completed" if over else "scheduled",
        "retired": over,
        "is_p2p": is_p2p,
        "time_created_ns": 1_000_000_000 + number,
        **more,
    }


def uneven(number: int, *, over: bool = True) -> list[Entry]:
    """all_gather of tensors of different sizes on three ranks: a part for each, whose state is never updated."""
    parts = [entry("_broadcast_oop", number=number, over=False, input_sizes=[[size, 2]]) for size in (1, 2, 3)]
    return [*parts, entry("ALLGATHER_coalesced", number=number, over=over, input_sizes=[])]


def batch(p2p: int, *names: str, over: bool = True) -> list[Entry]:
    """batch_isend_irecv, likewise."""
    return [*(entry(name, p2p=p2p, over=False) for name in names), entry("coalesced", p2p=p2p, over=over)]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """The group `0` as the controller reads it, of what stands in a rank's recorder."""

    def group(*entries: Entry, recorder: str = "_dump_nccl_trace", length: int = 8) -> Group:
        c10d, python = ModuleType("c10d"), ModuleType("python")

        def dump(*, includeStackTraces: bool) -> bytes:
            return pickle.dumps({"entries": list(entries)})

        vars(c10d)[recorder] = dump
        vars(python)["_world"] = SimpleNamespace(pg_group_ranks={7: {0: 0, 1: 1, 2: 2}}, pg_names={7: "0"})
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", c10d)
        monkeypatch.setitem(sys.modules, torch_adapter.C10D, python)
        tail = torch_adapter.recorder_tail(length, lambda file: True)
        assert tail is not None
        return groups_of(tail)["0"]

    return group


def rank(number: int, group: Group, **more: Any) -> Seen:
    return Seen(rank=number, host="a", quiet=40, groups={"0": group}, **more)


def reduces(first: int, last: int, *, over: bool = True) -> list[Entry]:
    """all_reduce from one number to another, the last perhaps unfinished."""
    return [entry("all_reduce", number=number, over=over or number < last) for number in range(first, last + 1)]


def test_the_parts_of_an_uneven_all_gather_are_not_what_a_rank_waits_in(read: Read):
    group = read(*uneven(1), *reduces(2, 9, over=False))
    assert group.pending is not None
    assert (group.pending.number, group.pending.op) == (9, "all_reduce")
    assert read(*uneven(1)).pending is None


def test_the_rank_that_is_late_is_named_after_an_uneven_all_gather(read: Read):
    waits = read(*uneven(1), *reduces(2, 20, over=False))
    finding = judge({0: rank(0, waits), 1: rank(1, waits), 2: rank(2, read(*uneven(1), *reduces(2, 19)))})
    assert finding is not None
    assert finding.culprits == (2,)


def test_an_uneven_all_gather_that_waits_is_one_call(read: Read):
    group = read(*reduces(1, 8), *uneven(9, over=False))
    assert group.pending is not None
    assert (group.pending.number, group.pending.op) == (9, "ALLGATHER_coalesced")
    assert [call.number for call in group.calls] == [2, 3, 4, 5, 6, 7, 8, 9]


def test_what_stands_before_a_completed_call_of_its_group_is_over(read: Read):
    entries = [entry("all_reduce", number=1, over=False), entry("all_reduce", number=2)]
    assert read(*entries).pending is None
    apart = [entries[0], entry("all_reduce", number=2, group=1)]
    assert read(*apart).pending is not None


def test_gloo_may_finish_in_another_order(read: Read):
    entries = [entry("all_reduce", number=1, over=False), entry("all_reduce", number=2)]
    pending = read(*entries, recorder="_dump_fr_trace").pending
    assert pending is not None
    assert pending.number == 1


def test_a_batch_of_sends_and_recvs_that_is_over_waits_for_nobody(read: Read):
    assert read(*batch(1, "send 1->0", "recv 1<-0")).peers == ()
    assert read(*batch(1, "recv 1<-0", over=False), *batch(2, "recv 1<-2")).peers == ()
    assert read(*batch(1, "recv 1<-0", over=False), entry("all_reduce", number=1)).peers == ()


def test_a_batch_that_waits_names_the_other_side(read: Read):
    assert read(*batch(1, "recv 1<-0"), *batch(2, "send 1->2", "recv 1<-2", over=False)).peers == (2, 2)


def test_single_sends_and_recvs_have_an_order_of_their_own(read: Read):
    waits = entry("recv 1<-0", p2p=1, over=False)
    assert read(waits, entry("all_reduce", number=1)).peers == (0,)
    assert read(waits, *batch(2, "recv 1<-2")).peers == (0,)
    assert read(waits, *uneven(1)).peers == (0,)
    # A collective after it bears the same number of sends and recvs.
    assert read(waits, entry("coalesced", number=1) | {"p2p_seq_id": 1}).peers == (0,)
    # A finished one says nothing of those before it either.
    late = [entry("all_reduce", number=1, over=False), entry("recv 1<-0", p2p=1)]
    assert read(*late).pending is not None


def test_the_rank_that_is_stuck_is_named_after_batches_that_are_over(read: Read):
    old = batch(1, "send 0->1", "recv 0<-1")
    waits = rank(0, read(*old, *batch(2, "recv 0<-1", over=False)), peer=1)
    stuck = rank(1, read(*batch(1, "recv 1<-0", "send 1->0")))
    finding = judge({0: waits, 1: stuck})
    assert finding is not None
    assert (finding.culprits, finding.circle) == ((1,), ())

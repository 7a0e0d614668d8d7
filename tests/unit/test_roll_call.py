"""What rank 0 makes of the facts that all ranks report."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict

import pytest
from waiting import patience

from muster.errors import MusterError
from muster.rank.world.roll_call import Facts, assign, call_roll


def facts(host="a", gpus=(), backend=None, local=(None, None), machine="boot1", address=""):
    return Facts(
        host=host,
        machine=machine,
        gpus=gpus,
        backend=backend,
        local_rank=local[0],
        local_size=local[1],
        address=address,
    )


def test_local_ranks_are_counted_by_machine_when_the_launcher_does_not_tell():
    places = assign([facts("a"), facts("b"), facts("a"), facts("a", machine="boot2")])
    assert [(p.local_rank, p.local_size) for p in places] == [(0, 2), (0, 1), (1, 2), (0, 1)]


def test_the_launchers_local_ranks_are_kept():
    places = assign([facts(local=(1, 2)), facts(local=(0, 2))])
    assert [p.local_rank for p in places] == [1, 0]


def test_each_rank_with_a_gpu_of_its_own_means_nccl():
    places = assign([facts(gpus=("g0", "g1")), facts(gpus=("g0", "g1"))])
    assert [(p.backend, p.gpu) for p in places] == [("nccl", 0), ("nccl", 1)]


def test_a_launcher_that_shows_each_rank_one_gpu_means_nccl():
    places = assign([facts(gpus=("g0",), local=(0, 2)), facts(gpus=("g1",), local=(1, 2))])
    assert [(p.backend, p.gpu) for p in places] == [("nccl", 0), ("nccl", 0)]


def test_one_rank_without_a_gpu_means_gloo_for_all_and_is_named():
    places = assign([facts(gpus=("g0",)), facts("b")])
    assert {p.backend for p in places} == {"gloo"}
    assert "rank 1 (on b) has no GPU" in places[0].backend_reason


def test_ranks_that_share_a_gpu_mean_gloo():
    places = assign([facts(gpus=("g0",)), facts(gpus=("g0",))])
    assert places[0].backend == "gloo"
    assert "ranks 0 and 1 share a GPU" in places[0].backend_reason


def test_nccl_on_a_shared_gpu_is_refused_with_gloo_named():
    with pytest.raises(MusterError, match=r"ranks 0 and 1 share a GPU on a"):
        assign([facts(gpus=("g0",), backend="nccl"), facts(gpus=("g0",), backend="nccl")])


def test_ranks_that_ask_for_different_backends_are_reported():
    with pytest.raises(MusterError, match="rank 0 requests backend gloo, but rank 1 requests nccl"):
        assign([facts(backend="gloo"), facts(backend="nccl")])


def test_each_rank_hears_of_an_address_on_another_machine():
    places = assign(
        [
            facts("a", address="127.0.1.1"),
            facts("a", address="127.0.1.1"),
            facts("b", address="10.0.0.2"),
            facts("c", address="10.0.0.3"),
        ]
    )
    assert [place.neighbor for place in places] == ["10.0.0.2", "10.0.0.2", "10.0.0.3", "10.0.0.2"]


def test_ranks_of_one_machine_have_no_neighbor():
    assert [place.neighbor for place in assign([facts(address="10.0.0.2"), facts(address="10.0.0.2")])] == ["", ""]
    assert [place.neighbor for place in assign([facts(), facts("b")])] == ["", ""]


class Shelf:
    """A store in one process, enough for one rank to hear that it is alone."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def add(self, key, amount):
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)


def test_a_rank_that_never_comes_is_named():
    with pytest.raises(MusterError, match=r"ranks 1, 2 of 3 did not reach rank 0 at h1:29500 within 0 s"):
        call_roll(Shelf(), 0, 3, facts(), limit=0.05, where="h1:29500")


def test_rank_0_does_not_leave_before_the_others_know_why():
    shelf = Shelf()
    found: dict[int, str] = {}

    def join(rank: int) -> None:
        with pytest.raises(MusterError) as error:
            call_roll(shelf, rank, 3, facts(), limit=0.05, where="h1:29500")
        found[rank] = str(error.value)

    rank_0 = threading.Thread(target=join, args=[0])
    shelf.set("facts/1", json.dumps(asdict(facts())))  # rank 1 has arrived, and its host is too busy to ask
    rank_0.start()
    rank_0.join(0.5)
    assert rank_0.is_alive()
    join(1)
    rank_0.join(patience(20))
    assert not rank_0.is_alive()
    assert found == dict.fromkeys((0, 1), "rank 2 of 3 did not reach rank 0 at h1:29500 within 0 s")


def test_two_processes_with_one_rank_are_reported():
    shelf = Shelf()
    call_roll(shelf, 0, 1, facts(), limit=30, where="h1:29500")
    with pytest.raises(MusterError, match="two processes claim to be rank 0 of 1"):
        call_roll(shelf, 0, 1, facts(), limit=30, where="h1:29500")

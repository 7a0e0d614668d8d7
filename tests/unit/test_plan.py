"""The plan: who runs where, on which GPU, with which environment."""

from __future__ import annotations

import dataclasses
import json

import pytest

from muster.errors import HostError, UsageError
from muster.hosts import Host, parse_hosts
from muster.plan import (
    FOUND_AT_START,
    Plan,
    check_gpus,
    default_threads,
    fill_slots,
    gpu_environment,
    make_plan,
    rank_environment,
)

# What torch 2.13's elastic agent puts into a rank's environment (torch/distributed/elastic/agent/server/
# local_elastic_agent.py, _start_workers), less the file for error reports, which Muster does without.
TORCHRUN_SETS = {
    "LOCAL_RANK",
    "RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
}


def plan_for(hosts: str, *, threads: int = 1, restarts: int = 0, **user_env: str) -> Plan:
    parsed = parse_hosts(hosts)
    plan = make_plan("job-1", parsed, threads=[threads] * len(parsed), restarts=restarts, user_env=user_env)
    return plan.at("10.0.0.1", 29500)


def test_ranks_fill_unequal_hosts_in_the_order_they_were_listed():
    plan = plan_for("big:8,box:2,small:1")
    assert plan.world_size == 11
    assert [(place.name, place.ranks) for place in plan.placements] == [
        ("big", range(8)),
        ("box", range(8, 10)),
        ("small", range(10, 11)),
    ]
    assert [plan.placement_of(rank).name for rank in (0, 7, 8, 9, 10)] == ["big", "big", "box", "box", "small"]


def test_every_rank_has_exactly_one_place_and_a_local_rank_below_its_hosts_size():
    plan = plan_for("a:3,b:1,c:4")
    seen = []
    for rank in range(plan.world_size):
        env = rank_environment(plan, rank)
        assert 0 <= int(env["LOCAL_RANK"]) < int(env["LOCAL_WORLD_SIZE"])
        seen.append((env["GROUP_RANK"], env["LOCAL_RANK"]))
    assert seen == [(str(g), str(i)) for g, size in enumerate((3, 1, 4)) for i in range(size)]


def test_a_rank_gets_the_environment_of_torchrun_in_full():
    plan = plan_for("a:1,b:2", restarts=3)
    assert rank_environment(plan, 2, attempt=1) == {
        "RANK": "2",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "2",
        "ROLE_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "job-1",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MUSTER_JOB": "job-1",
        "OMP_NUM_THREADS": "1",
    }
    assert set(rank_environment(plan, 0)) >= TORCHRUN_SETS


def test_local_world_size_is_that_of_the_ranks_own_host():
    plan = plan_for("a:4,b:1,c:2")
    sizes = [rank_environment(plan, rank)["LOCAL_WORLD_SIZE"] for rank in range(7)]
    assert sizes == ["4", "4", "4", "4", "1", "2", "2"]


def test_threads_are_left_alone_where_the_user_has_set_them():
    assert "OMP_NUM_THREADS" not in rank_environment(plan_for("a:2", threads=0), 0)
    assert rank_environment(plan_for("a:2", threads=6), 1)["OMP_NUM_THREADS"] == "6"


@pytest.mark.parametrize(
    ("cpus", "slots", "threads"), [(64, 8, 8), (10, 4, 2), (2, 8, 1), (1, 1, 1), (7, 1, 7), (4, 0, 4)]
)
def test_the_cpus_of_a_host_are_shared_out_and_each_rank_gets_one_thread_at_least(cpus: int, slots: int, threads: int):
    assert default_threads(cpus, slots) == threads


def test_a_list_of_gpus_makes_exactly_those_visible_in_that_order():
    plan = plan_for("big:5,0,2,box:2")
    env = rank_environment(plan, 1)
    assert env["CUDA_VISIBLE_DEVICES"] == "5,0,2"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["LOCAL_RANK"] == "1"


def test_a_host_without_a_list_of_gpus_keeps_its_own_choice():
    env = rank_environment(plan_for("big:5,0,2,box:2"), 3)
    assert "CUDA_VISIBLE_DEVICES" not in env
    assert "CUDA_DEVICE_ORDER" not in env


def test_a_device_order_of_the_users_is_kept():
    assert gpu_environment((1,), None, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}) == {"CUDA_VISIBLE_DEVICES": "1"}


def test_gpus_are_counted_among_those_a_scheduler_made_visible():
    assert gpu_environment((0, 2), "4,5,GPU-8a", {}) == {"CUDA_VISIBLE_DEVICES": "4,GPU-8a"}


def test_one_gpu_in_brackets_is_a_list_and_not_a_count():
    env = rank_environment(plan_for("big:[3]"), 0)
    assert env["CUDA_VISIBLE_DEVICES"] == "3"
    assert env["WORLD_SIZE"] == "1"


@pytest.mark.parametrize(
    ("written", "nproc", "gpus", "slots"),
    [("a:3", 5, 8, 3), ("a", 5, 8, 5), ("a", None, 8, 8), ("a", None, 0, 1), ("a:1,2", 5, 8, 2)],
)
def test_slots_come_from_the_host_list_then_nproc_then_gpus_then_one(
    written: str, nproc: int | None, gpus: int, slots: int
):
    (host,) = parse_hosts(written)
    assert fill_slots(host, nproc=nproc, gpus=gpus).slots == slots


@pytest.mark.parametrize(
    ("slots", "nproc", "gpus", "ranks"), [(3, 5, 8, 3), (None, 5, 8, 5), (None, None, 8, 8), (None, None, 0, 4)]
)
def test_the_tasks_of_a_scheduler_count_only_where_nothing_else_says_how_many_ranks_there_are(
    slots: int | None, nproc: int | None, gpus: int, ranks: int
):
    assert fill_slots(Host(name="a", slots=slots, tasks=4), nproc=nproc, gpus=gpus).slots == ranks


def test_more_ranks_than_gpus_are_refused_with_the_number_that_fits():
    with pytest.raises(HostError) as caught:
        check_gpus(Host(name="box", slots=4), 2)
    assert caught.value.message == "box: 4 ranks need 4 GPUs, but the host has 2"
    assert "`box:2`" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("gpus", "there", "said"),
    [
        ((0, 7), 4, "box: GPU 7 does not exist; the host has GPUs 0 to 3"),
        ((1,), 1, "box: GPU 1 does not exist; the host has GPU 0 only"),
        ((4, 5), 2, "box: GPU 4, 5 does not exist; the host has GPUs 0 to 1"),
        ((0, 1), 0, "box: GPUs 0, 1 were requested, but the host has no GPU"),
    ],
)
def test_a_gpu_that_is_not_there_is_named(gpus: tuple[int, ...], there: int, said: str):
    with pytest.raises(HostError) as caught:
        check_gpus(Host(name="box", slots=len(gpus), gpus=gpus), there)
    assert caught.value.message == said
    assert caught.value.hint


@pytest.mark.parametrize(
    ("host", "there"),
    [
        (Host(name="a", slots=64), 0),  # no GPU at all: ranks run on the CPU
        (Host(name="a", slots=2), 2),
        (Host(name="a", slots=1), 8),
        (Host(name="a", slots=2, gpus=(6, 7)), 8),
    ],
)
def test_what_a_host_has_is_accepted(host: Host, there: int):
    check_gpus(host, there)


def test_no_hosts_are_a_mistake_of_the_user():
    with pytest.raises(UsageError, match="no hosts"):
        make_plan("job-1", (), threads=[], restarts=0, user_env={})


def test_what_only_running_hosts_know_is_marked_in_a_plan_made_before():
    plan = make_plan("job-1", parse_hosts("a:1"), threads=[1], restarts=0, user_env={})
    env = rank_environment(plan, 0)
    assert env["MASTER_ADDR"] == env["MASTER_PORT"] == FOUND_AT_START


def test_a_plan_is_data_that_cannot_be_changed_and_can_be_written_as_json():
    plan = plan_for("root@big:0,2,box:1", threads=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.master_port = 1  # type: ignore[misc]
    assert json.loads(json.dumps(plan.as_data())) == {
        "job": "job-1",
        "world_size": 3,
        "master": "10.0.0.1:29500",
        "hosts": [
            {
                "host": "root@big:0,2",
                "ranks": [0, 1],
                "threads": 4,
                "env": {"CUDA_VISIBLE_DEVICES": "0,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            },
            {"host": "box:1", "ranks": [2], "threads": 4, "env": {}},
        ],
    }


def test_the_role_is_a_variable_of_every_rank():
    plan = make_plan("job-1", parse_hosts("a:1,b:1"), threads=[1, 1], restarts=0, user_env={}, role="trainer")
    assert [rank_environment(plan, rank)["ROLE_NAME"] for rank in (0, 1)] == ["trainer", "trainer"]

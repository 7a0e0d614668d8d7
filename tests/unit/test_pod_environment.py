"""The variables of pods: Indexed Job, JobSet, TrainJob and PyTorchJob."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.engines.kubernetes.pod_environment import PORT, lone_index, read_pod_job, token_in
from muster.errors import UsageError

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
INDEXED = {**POD, "JOB_COMPLETION_INDEX": "2", "PET_NNODES": "4"}
HOSTS = "127.0.0.1 localhost\n10.244.1.7\ttrain-2.net.team.svc.cluster.local\ttrain-2\n"


def test_a_pod_of_an_indexed_job_finds_the_first_one_by_its_own_name():
    found = read_pod_job(INDEXED, "train-2", HOSTS)
    assert found is not None
    assert (found.index, found.nodes, found.name, found.port) == (2, 4, "train", PORT)
    assert found.pods == ("train-0", "train-1", "train-2", "train-3")
    assert found.address == "train-0.net.team.svc.cluster.local"


def test_without_a_subdomain_the_first_pod_is_unknown():
    found = read_pod_job(INDEXED, "train-2", "127.0.0.1 localhost\n10.244.1.7 train-2\n")
    assert found is not None
    assert found.address == ""


def test_a_pod_of_a_jobset_has_the_index_at_the_end_of_its_name():
    hosts = "10.1.1.1 js-workers-0-1.js.ns.svc.cluster.local js-workers-0-1"
    found = read_pod_job({**INDEXED, "JOB_COMPLETION_INDEX": "1"}, "js-workers-0-1", hosts)
    assert found is not None
    assert found.address == "js-workers-0-0.js.ns.svc.cluster.local"
    assert found.pods[1] == "js-workers-0-1"


def test_a_trainjob_says_everything_in_the_variables_of_torchrun():
    env = {
        **POD,
        "JOB_COMPLETION_INDEX": "1",
        "PET_NODE_RANK": "1",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "8",
        "PET_MASTER_ADDR": "llm-node-0-0.llm",
        "PET_MASTER_PORT": "29400",
    }
    found = read_pod_job(env, "llm-node-0-1")
    assert found is not None
    assert (found.index, found.index_from, found.nproc) == (1, "PET_NODE_RANK", 8)
    assert (found.address, found.port) == ("llm-node-0-0.llm", 29400)


@pytest.mark.parametrize("word", ["auto", "gpu", "cpu"])
def test_a_number_of_processes_that_is_a_word_is_left_to_muster(word: str):
    found = read_pod_job({**INDEXED, "PET_NPROC_PER_NODE": word}, "train-2")
    assert found is not None
    assert found.nproc is None


def test_the_pods_of_a_pytorchjob_are_numbered_because_their_names_differ():
    env = {**POD, "RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "bert-master-0", "MASTER_PORT": "23456"}
    found = read_pod_job(env, "bert-worker-0")
    assert found is not None
    assert (found.index, found.nodes, found.address, found.port) == (1, 3, "bert-master-0", 23456)
    assert found.pods == ("node-0", "node-1", "node-2")


def test_an_elastic_range_counts_as_its_maximum():
    found = read_pod_job({**INDEXED, "PET_NNODES": "1:3"}, "train-2")
    assert found is not None
    assert found.nodes == 3


@pytest.mark.parametrize(
    "env",
    [
        {},
        POD,
        {**POD, "JOB_COMPLETION_INDEX": "0"},
        {**POD, "JOB_COMPLETION_INDEX": "0", "PET_NNODES": "1"},
        {**POD, "JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "4"},
        {**POD, "RANK": "1", "WORLD_SIZE": "4"},
        {**POD, "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a"},
        {"JOB_COMPLETION_INDEX": "1", "PET_NNODES": "4"},
    ],
)
def test_other_places_are_no_job_of_several_pods(env: dict[str, str]):
    assert read_pod_job(env, "train-1") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PET_NNODES", "four"),
        ("PET_NNODES", "4:x"),
        ("PET_NNODES", "9999999999"),
        ("PET_NNODES", "-1"),
        ("JOB_COMPLETION_INDEX", "4"),
        ("JOB_COMPLETION_INDEX", "²"),
        ("PET_MASTER_PORT", "0"),
        ("PET_MASTER_PORT", "70000"),
    ],
)
def test_a_value_that_is_no_number_in_range_is_named(name: str, value: str):
    with pytest.raises(UsageError, match=f"^{name}={value}: must be a number from"):
        read_pod_job({**INDEXED, name: value}, "train-2")


def test_a_pod_without_a_number_of_pods_is_alone():
    assert lone_index({**POD, "JOB_COMPLETION_INDEX": "3"}) == "3"
    assert lone_index(INDEXED) == ""
    assert lone_index({"JOB_COMPLETION_INDEX": "3"}) == ""


def test_the_secret_comes_from_its_file_or_from_a_variable(tmp_path: Path):
    file = tmp_path / "token"
    missing = str(file)
    assert token_in({"MUSTER_TOKEN": "v" * 32}, missing) == "v" * 32
    file.write_text("f" * 32 + "\n")
    assert token_in({"MUSTER_TOKEN": "v" * 32}, missing) == "f" * 32


@pytest.mark.parametrize(
    ("token", "message"),
    [("", "the pods share no secret"), ("short", "MUSTER_TOKEN has fewer than 32 characters")],
)
def test_without_a_good_secret_the_error_says_how_to_make_one(tmp_path: Path, token: str, message: str):
    with pytest.raises(UsageError, match=message) as caught:
        token_in({"MUSTER_TOKEN": token}, str(tmp_path / "none"))
    assert "kubectl create secret generic muster" in str(caught.value.hint)

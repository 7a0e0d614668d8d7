"""Slurm, MPI, podman and GPUs in a lab, as far as no host is needed."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from muster.errors import LabError
from muster.lab import Lab
from muster.lab.fake_gpus import gpus_of
from muster.lab.podman_service import image, volumes
from muster.lab.slurm_service import gres_conf, slurm_conf, usable


def test_a_number_of_gpus_is_for_every_host_and_a_mapping_for_some() -> None:
    assert gpus_of(("h1", "h2"), 2) == {"h1": 2, "h2": 2}
    assert gpus_of(("h1", "h2", "h3"), {"h2": 1, "h1": 4}) == {"h1": 4, "h2": 1, "h3": 0}


@pytest.mark.parametrize("gpus", [-1, 65, {"h1": -1}])
def test_an_impossible_number_of_gpus_is_refused_for_a_host(gpus: Any) -> None:
    with pytest.raises(LabError, match=r"number of GPUs of h1 must be from 0 to 64, got -?[0-9]+"):
        gpus_of(("h1",), gpus)


def test_gpus_for_a_host_that_is_not_there_are_refused() -> None:
    with pytest.raises(LabError, match="unknown host `h3`") as caught:
        gpus_of(("h1", "h2"), {"h3": 1})
    assert caught.value.hint == "the hosts are h1, h2"


def test_slurm_knows_each_host_and_its_gpus() -> None:
    gpus = {"h1": 4, "h2": 1, "h3": 0}
    lines = slurm_conf(gpus).splitlines()
    assert "SlurmctldHost=h1" in lines
    nodes = [line.split() for line in lines if line.startswith("NodeName=")]
    assert [node[0] for node in nodes] == ["NodeName=h1", "NodeName=h2", "NodeName=h3"]
    assert [[word for word in node if word.startswith("Gres=")] for node in nodes] == [
        ["Gres=gpu:4"],
        ["Gres=gpu:1"],
        [],
    ]
    assert gres_conf(gpus).splitlines() == [
        "NodeName=h1 Name=gpu File=/dev/nvidia[0-3]",
        "NodeName=h2 Name=gpu File=/dev/nvidia0",
    ]


def test_a_node_that_is_silent_down_or_not_known_takes_no_jobs() -> None:
    assert usable("idle")
    assert usable("mixed")
    assert not any(map(usable, ("idle*", "down", "down*", "unknown", "drained", None)))


def test_the_image_holds_folders_and_links_and_hardly_a_file() -> None:
    with tarfile.open(fileobj=io.BytesIO(image())) as tar:
        members = {member.name: member for member in tar.getmembers()}
    assert members["bin"].linkname == "usr/bin"
    assert members["usr"].isdir()
    assert members["tmp"].mode == 0o1777
    assert {name for name, member in members.items() if member.isfile()} <= {
        "etc/passwd",
        "etc/group",
        "etc/ld.so.cache",
    }


def test_folders_for_a_container_are_named_once_and_cannot_be_written() -> None:
    options = volumes()
    assert "--volume=/usr:/usr:ro" in options
    paths = [option.partition("=")[2].split(":")[0] for option in options]
    assert not [path for path in paths for other in paths if path.startswith(f"{other}/")]


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"slurm": True}, "Slurm needs a lab started as root"),
        ({"podman": True}, "podman needs a lab started as root"),
        ({"mpi": True}, "MPI needs a lab in namespaces"),
        ({"gpus": 2}, "this lab cannot have GPUs: its hosts are only loopback addresses"),
    ],
)
def test_a_lesser_lab_says_at_once_what_it_cannot_have(wanted: dict[str, Any], error: str) -> None:
    with pytest.raises(LabError) as caught:
        Lab(2, kind="loopback", **wanted)
    assert caught.value.message == error
    assert caught.value.hint

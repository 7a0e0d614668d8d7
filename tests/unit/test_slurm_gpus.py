"""GPUs of a Slurm job that its steps would not get by themselves: from scontrol's words to srun's options."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.engines.allocation import Allocation
from muster.engines.engine import AgentSpec, Choice
from muster.engines.slurm.engine import SlurmEngine, srun_commands
from muster.engines.slurm.job_gpus import gpus_of_job, read_gpus
from muster.hosts import Host
from muster.spec import RunSpec

# `scontrol show job --details` of `salloc -N2 --gpus=3` (Slurm 22.05), shortened.
DETAILS = """\
JobId=1 JobName=interactive
   NodeList=h[1-2]
   JOB_GRES=gpu:3
     Nodes=h1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)
     Nodes=h2 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
"""


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        (DETAILS, {"h1": 2, "h2": 1}),
        ("     Nodes=n[08-10] CPU_IDs=0-3 Mem=0 GRES=gpu:a100:4(IDX:0-3)\n", {"n08": 4, "n09": 4, "n10": 4}),
        ("  Nodes=a CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0,2),gpu:v100:1(IDX:1),shard:8(x)\n", {"a": 3}),
        ("  Nodes=a CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)\n  Nodes=b CPU_IDs=0 Mem=0 GRES=\n", {"a": 2, "b": 0}),
        ("  Nodes=a CPU_IDs=0 Mem=0 GRES=\n", {}),
        ("slurm_load_jobs error: Invalid job id specified\n", {}),
        ("", {}),
    ],
    ids=["unequal", "typed", "two types", "some without", "none", "unknown job", "no answer"],
)
def test_the_gpus_of_each_host_are_read(text: str, gpus: dict[str, int]) -> None:
    assert read_gpus(text) == gpus


def test_slurm_is_not_asked_where_steps_get_all_gpus_by_themselves() -> None:
    assert gpus_of_job({"SLURM_JOB_ID": "1", "SLURM_GPUS_PER_NODE": "2"}) == ({}, "")


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("exec sleep 60", "`scontrol` did not answer within 0.3 s"),
        (
            "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
            "`scontrol show job --details 1` failed: slurm_load_jobs error: Un",
        ),
        ("exit 3", "`scontrol show job --details 1` failed: exit code 3"),
    ],
    ids=["hangs", "down", "no output"],
)
def test_a_silent_scontrol_is_reported_because_hosts_may_get_fewer_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, why: str
):
    for name, text in (("scontrol", program), ("srun", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found, unknown = gpus_of_job({"SLURM_JOB_ID": "1", "SLURM_GPUS": "4"}, 0.3 if "sleep" in program else 60)
    assert (found, unknown[: len(why)]) == ({}, why)
    monkeypatch.setattr("muster.engines.slurm.engine.gpus_of_job", lambda env: ({}, unknown))
    hosts = (Host(name="n1"), Host(name="n2"))
    choice = Choice(
        engine=SlurmEngine(), hosts=hosts, allocation=Allocation(kind="Slurm allocation", id="1", hosts=hosts)
    )
    (note,) = SlurmEngine().launch(choice, RunSpec(target="train.py"), "/job").notes
    assert note.startswith(f"could not determine the GPUs that Slurm allocated ({why}")


def options(gpus: dict[str, int], *names: str) -> list[tuple[str, ...]]:
    """The first words of each srun."""
    allocation = Allocation(kind="Slurm allocation", id="1", hosts=tuple(Host(name=name) for name in gpus))
    agents = [AgentSpec(host=Host(name=name), name=name, key=name) for name in names]
    return [command.argv[3:5] for command in srun_commands(allocation, agents, python="p", box=None, gpus=gpus)]


def test_equal_hosts_share_an_srun_and_unequal_ones_have_one_each() -> None:
    assert options({"a": 2, "b": 2}, "a", "b") == [("--nodelist=a,b", "--gres=gpu:2")]
    assert options({"a": 2, "b": 1, "c": 0}, "a", "b", "c") == [
        ("--nodelist=a", "--gpus=2"),
        ("--nodelist=b", "--gpus=1"),
        ("--nodelist=c", "--gres=none"),
    ]
    # `--gres=gpu:2` for h1 alone is refused in a job that has 2 and 1.
    assert options({"a": 2, "b": 1}, "a") == [("--nodelist=a", "--gpus=2")]

"""GPUs of a Slurm job that its steps would not get by themselves: from scontrol's words to srun's options."""

from __future__ import annotations

import pytest

from muster.engines.allocation import Allocation
from muster.engines.engine import AgentSpec
from muster.engines.slurm.engine import srun_commands
from muster.engines.slurm.job_gpus import gpus_of_job, read_gpus
from muster.hosts import Host

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
    assert gpus_of_job({"SLURM_JOB_ID": "1", "SLURM_GPUS_PER_NODE": "2"}) == {}


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

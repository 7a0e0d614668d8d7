"""The hosts of a Slurm allocation, read from variables as Slurm 22.05 set them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engines.slurm.environment import in_slurm_allocation, read_slurm
from muster.errors import MusterError

# salloc -N2 -n3
TASKS = {
    "SLURM_JOB_ID": "4",
    "SLURM_JOB_NODELIST": "h[1-2]",
    "SLURM_NTASKS": "3",
    "SLURM_TASKS_PER_NODE": "2,1",
}
# salloc -N2 --exclusive
EXCLUSIVE = {"SLURM_JOB_ID": "2", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_TASKS_PER_NODE": "8(x2)"}
# salloc -N1 : -N2 -n3
GROUPS = {
    "SLURM_JOB_ID": "4",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID_HET_GROUP_0": "4",
    "SLURM_JOB_ID_HET_GROUP_1": "5",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "h1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "h[2-3]",
    "SLURM_NTASKS_HET_GROUP_1": "3",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "1",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "2,1",
}
# sbatch with the same two groups and -n2 in the first: the plain variables are those of group 0.
BATCH_GROUPS = {
    **GROUPS,
    "SLURM_JOB_NODELIST": "h1",
    "SLURM_NTASKS": "2",
    "SLURM_TASKS_PER_NODE": "2",
    "SLURM_NTASKS_HET_GROUP_0": "2",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2",
}
# salloc -N2 --ntasks-per-node=2 srun -N1 -n1 ...
PART_STEP = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "h[1-2]",
    "SLURM_NTASKS": "1",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "h1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_TASKS_PER_NODE": "1",
}
# salloc -N1 -n2 : -N2 -n3 with LaunchParameters=use_interactive_step: one shell, although it says two tasks.
SHELL_OF_GROUPS = {
    **BATCH_GROUPS,
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NODELIST": "h1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_TASKS_PER_NODE": "1",
}

CASES = {
    "tasks were asked for": (TASKS, [("h1", 2), ("h2", 1)], ()),
    "no tasks were asked for": (EXCLUSIVE, [("h1", None), ("h2", None)], ()),
    "tasks per node only": (
        {**EXCLUSIVE, "SLURM_NTASKS_PER_NODE": "8"},
        [("h1", 8), ("h2", 8)],
        (),
    ),
    "one host": (
        {"SLURM_JOB_ID": "3", "SLURM_JOB_NODELIST": "box", "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "3"},
        [("box", 3)],
        (),
    ),
    "groups, tasks asked for in one": (GROUPS, [("h1", None), ("h2", 2), ("h3", 1)], (0, 1, 1)),
    "groups in a batch script": (BATCH_GROUPS, [("h1", 2), ("h2", 2), ("h3", 1)], (0, 1, 1)),
    "groups in salloc's own shell": (SHELL_OF_GROUPS, [("h1", 2), ("h2", 2), ("h3", 1)], (0, 1, 1)),
    "a step on a part of the hosts": (PART_STEP, [("h1", None), ("h2", None)], ()),
    "salloc's own shell on a compute node": (
        {**TASKS, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NODELIST": "h1", "SLURM_STEP_NUM_TASKS": "1"},
        [("h1", 2), ("h2", 1)],
        (),
    ),
}


@pytest.mark.parametrize(("env", "hosts", "groups"), CASES.values(), ids=CASES.keys())
def test_hosts_tasks_and_groups_are_those_of_the_allocation(env, hosts, groups):
    assert in_slurm_allocation(env)
    allocation = read_slurm(env)
    assert [(host.name, host.tasks) for host in allocation.hosts] == hosts
    assert all(host.slots is None for host in allocation.hosts)
    assert (allocation.kind, allocation.id, allocation.groups) == ("Slurm allocation", env["SLURM_JOB_ID"], groups)


NODELISTS = {
    "a[1-2],b[3-4]-ib": ["a1", "a2", "b3-ib", "b4-ib"],
    "n[001-003,020]": ["n001", "n002", "n003", "n020"],
    "r[1-2]n[01-02].site": ["r1n01.site", "r1n02.site", "r2n01.site", "r2n02.site"],
    "gpu-[8-11]": ["gpu-8", "gpu-9", "gpu-10", "gpu-11"],
    "login,x9": ["login", "x9"],
    "n[9-10,1]": ["n9", "n10", "n1"],
}


@pytest.mark.parametrize(("nodelist", "names"), NODELISTS.items())
def test_every_form_of_a_node_list_is_read_in_its_order(nodelist, names):
    allocation = read_slurm({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": nodelist})
    assert [host.name for host in allocation.hosts] == names


def shortened(counts):
    """The counts as Slurm writes them: equal neighbors grouped."""
    parts, times = [], 0
    for i, count in enumerate(counts):
        times += 1
        if i + 1 == len(counts) or counts[i + 1] != count:
            parts.append(f"{count}(x{times})" if times > 1 else str(count))
            times = 0
    return ",".join(parts)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30))
def test_each_host_has_the_tasks_that_slurm_counted(counts):
    names = [f"n{i:03d}" for i in range(len(counts))]
    allocation = read_slurm(
        {
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NODELIST": f"n[000-{len(counts) - 1:03d}]",
            "SLURM_NTASKS": str(sum(counts)),
            "SLURM_TASKS_PER_NODE": shortened(counts),
        }
    )
    assert [(host.name, host.tasks) for host in allocation.hosts] == list(zip(names, counts, strict=True))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_hosts_of_all_groups_come_in_the_order_of_the_groups(sizes):
    env = {"SLURM_JOB_ID": "1", "SLURM_HET_SIZE": str(len(sizes))}
    env |= {f"SLURM_JOB_NODELIST_HET_GROUP_{i}": f"g{i}n[1-{size}]" for i, size in enumerate(sizes)}
    allocation = read_slurm(env)
    assert allocation.groups == tuple(i for i, size in enumerate(sizes) for _ in range(size))
    assert [host.name for host in allocation.hosts] == [
        f"g{i}n{j + 1}" for i, size in enumerate(sizes) for j in range(size)
    ]


BROKEN = {
    "no allocation": ({}, "SLURM_JOB_ID is not set"),
    "no node list": ({"SLURM_JOB_ID": "77"}, "SLURM_JOB_ID=77 is set but SLURM_JOB_NODELIST is not"),
    "a bracket is open": ({**TASKS, "SLURM_JOB_NODELIST": "h[1-2"}, "SLURM_JOB_NODELIST: this bracket is not closed"),
    "more hosts than counts": (
        {**TASKS, "SLURM_JOB_NODELIST": "h[1-3]"},
        "SLURM_TASKS_PER_NODE=2,1 lists the tasks of 2 hosts, but SLURM_JOB_NODELIST=h[1-3] lists 3",
    ),
    "more counts than hosts": ({**TASKS, "SLURM_TASKS_PER_NODE": "2(x9)"}, "lists the tasks of 9 hosts"),
    "counts that are none": ({**TASKS, "SLURM_TASKS_PER_NODE": "2(y3)"}, "invalid part `2(y3)`"),
    "counts without end": ({**TASKS, "SLURM_TASKS_PER_NODE": "1(x999999999)"}, "invalid part"),
    "counts that lack one": ({**TASKS, "SLURM_TASKS_PER_NODE": "2,"}, "invalid part ``"),
    "a host twice": ({**TASKS, "SLURM_JOB_NODELIST": "h1,h[1-2]"}, "lists h1 more than once"),
    "a group is missing": (
        {**GROUPS, "SLURM_HET_SIZE": "3"},
        "SLURM_JOB_NODELIST_HET_GROUP_2 is not, so the job's hosts are unknown",
    ),
    "a host in two groups": ({**GROUPS, "SLURM_JOB_NODELIST_HET_GROUP_0": "h2"}, "h2 is also in group 0"),
    "groups that are no number": ({**GROUPS, "SLURM_HET_SIZE": "two"}, "SLURM_HET_SIZE=two"),
    "srun in front of muster": (
        {**PART_STEP, "SLURM_STEP_NUM_TASKS": "4"},
        "this is one of the 4 tasks of step 1.0; each would run the whole job",
    ),
}


@pytest.mark.parametrize(("env", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_allocation_is_one_sentence_with_a_hint(env, words):
    with pytest.raises(MusterError) as caught:
        read_slurm(env)
    assert words in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_a_slurm_without_a_job_is_no_allocation():
    assert not in_slurm_allocation({"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_JOB_ID": ""})


def test_an_allocation_says_what_it_is_and_what_was_worked_out():
    assert str(read_slurm(TASKS)) == "Slurm allocation 4, 2 hosts"
    assert read_slurm(TASKS).notes == ("SLURM_TASKS_PER_NODE=2,1 sets the number of ranks on hosts without GPUs",)
    assert read_slurm(EXCLUSIVE).notes == ()
    assert read_slurm(GROUPS).notes == (
        "a heterogeneous job of 2 groups",
        "SLURM_TASKS_PER_NODE_HET_GROUP_1=2,1 sets the number of ranks on hosts without GPUs",
    )
    assert "step 1.0, which does not span the whole allocation" in read_slurm(PART_STEP).notes[0]

"""Which launcher started a process, told from nothing but a mapping."""

from __future__ import annotations

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import MusterError
from muster.worker.detect import detect, from_arguments
from muster.worker.master import DEFAULT_PORT, FIRST_JOB_PORT, JOB_PORTS, count_on_node, first_host, job_port

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "41465",
    "TORCHELASTIC_RUN_ID": "none",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "2080440321",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}
# What an sbatch script or a salloc shell sees: no step.
ALLOCATION = {
    "SLURM_JOB_ID": "77",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NODELIST": "gpu[03-04]",
}
PBS_SCRIPT = {"PBS_JOBID": "0.pbssrv", "PBS_NODENUM": "0", "PBS_TASKNUM": "1", "PBS_ENVIRONMENT": "PBS_BATCH"}
PBS_TASK = {**PBS_SCRIPT, "PBS_NODENUM": "1", "PBS_TASKNUM": "20000003"}

CASES = {
    "muster run": ({**TORCHRUN, "MUSTER_JOB": "j1"}, [], ("muster run", 3, 4, 1, 2, "node1", 41465)),
    "torchrun": (TORCHRUN, ["train.py"], ("torchrun", 3, 4, 1, 2, "node1", 41465)),
    "torchrun inside an srun step": ({**STEP, **TORCHRUN}, [], ("torchrun", 3, 4, 1, 2, "node1", 41465)),
    "torch.distributed.launch": (
        TORCHRUN,
        ["train.py", "--local-rank=1"],
        ("torch.distributed.launch", 3, 4, 1, 2, "node1", 41465),
    ),
    "an old torch.distributed.launch without LOCAL_RANK": (
        {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29501"},
        ["train.py", "--lr", "1", "--local_rank", "1"],
        ("torch.distributed.launch", 3, 4, 1, None, "node1", 29501),
    ),
    "RANK and WORLD_SIZE set by a script": (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
        ["train.py", "--local_rank=-1"],
        ("environment", 1, 2, None, None, "127.0.0.1", DEFAULT_PORT),
    ),
    "mpirun on two hosts with an address": (
        {**OPEN_MPI, "MASTER_ADDR": "h1", "MASTER_PORT": "29501"},
        [],
        ("mpirun (Open MPI)", 3, 4, 1, 2, "h1", 29501),
    ),
    "mpirun on two hosts without an address": (
        OPEN_MPI,
        [],
        ("mpirun (Open MPI)", 3, 4, 1, 2, None, job_port("2080440321")),
    ),
    "mpirun on one host": (
        {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"},
        [],
        ("mpirun (Open MPI)", 3, 4, 3, 4, "127.0.0.1", job_port("2080440321")),
    ),
    "mpirun inside Slurm leaves its daemon's step variables in the ranks": (
        {**ALLOCATION, **STEP, **OPEN_MPI, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
        [],
        ("mpirun (Open MPI)", 3, 4, 1, 2, "gpu03", job_port("2080440321")),
    ),
    "mpiexec of MPICH": (
        {**HYDRA, "MASTER_ADDR": "h1"},
        [],
        ("mpiexec (MPICH or Intel MPI)", 3, 4, 1, 2, "h1", 29500),
    ),
    "mpiexec of MPICH inside Slurm": (
        {**STEP, **HYDRA, "SLURM_PROCID": "0", "MASTER_ADDR": "h1"},
        [],
        ("mpiexec (MPICH or Intel MPI)", 3, 4, 1, 2, "h1", job_port("77")),
    ),
    "srun": (STEP, [], ("srun", 3, 4, 1, 2, "gpu03", job_port("77.0"))),
    "srun --mpi=pmi2": (
        {**STEP, "PMI_RANK": "3", "PMI_SIZE": "4"},
        [],
        ("srun", 3, 4, 1, 2, "gpu03", job_port("77.0")),
    ),
    "srun with WORLD_SIZE exported by the job script": (
        {**STEP, "WORLD_SIZE": "4", "MASTER_ADDR": "gpu03", "MASTER_PORT": "29501"},
        [],
        ("srun", 3, 4, 1, 2, "gpu03", 29501),
    ),
    "srun on one host": (
        {**STEP, "SLURM_NODEID": "0", "SLURM_LOCALID": "3", "SLURM_STEP_TASKS_PER_NODE": "4"},
        [],
        ("srun", 3, 4, 3, 4, "127.0.0.1", job_port("77.0")),
    ),
    "an sbatch script": (ALLOCATION, [], ("python", 0, 1, 0, 1, "127.0.0.1", None)),
    "a PBS script": (PBS_SCRIPT, [], ("python", 0, 1, 0, 1, "127.0.0.1", None)),
    "a task of OpenPBS on each host": (
        {**PBS_TASK, "WORLD_SIZE": "2", "MASTER_ADDR": "n1"},
        [],
        ("PBS task", 1, 2, 0, 1, "n1", job_port("0.pbssrv")),
    ),
    "a task of OpenPBS on the first host": (
        {**PBS_SCRIPT, "PBS_TASKNUM": "00000004", "WORLD_SIZE": "2", "MASTER_ADDR": "n1"},
        [],
        ("PBS task", 0, 2, 0, 1, "n1", job_port("0.pbssrv")),
    ),
    "a task of Torque": (
        {**PBS_TASK, "PBS_TASKNUM": "3", "PBS_VNODENUM": "3", "PBS_NP": "4", "MASTER_ADDR": "n1"},
        [],
        ("PBS task", 3, 4, None, None, "n1", job_port("0.pbssrv")),
    ),
    "plain python": ({"PATH": "/bin"}, ["train.py"], ("python", 0, 1, 0, 1, "127.0.0.1", None)),
}


@pytest.mark.parametrize(("env", "argv", "expected"), CASES.values(), ids=CASES.keys())
def test_each_launcher_is_recognised(env, argv, expected):
    found = detect(env, argv)
    assert (
        found.launcher,
        found.rank,
        found.size,
        found.local_rank,
        found.local_size,
        found.master_addr,
        found.master_port,
    ) == expected


BROKEN = {
    "RANK is no number": ({**TORCHRUN, "RANK": "abc"}, "RANK=abc"),
    "RANK is negative": ({**TORCHRUN, "RANK": "-1"}, "RANK=-1"),
    "RANK is empty": ({**TORCHRUN, "RANK": ""}, "RANK="),
    "RANK without WORLD_SIZE": ({"RANK": "1"}, "RANK=1 is set but WORLD_SIZE is not"),
    "WORLD_SIZE without RANK": ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 is set but RANK is not"),
    "RANK beyond WORLD_SIZE": ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 is not a rank of a world of 4"),
    "LOCAL_RANK is no number": ({**TORCHRUN, "LOCAL_RANK": "x"}, "LOCAL_RANK=x"),
    "LOCAL_RANK beyond LOCAL_WORLD_SIZE": ({**TORCHRUN, "LOCAL_RANK": "2"}, "local rank 2"),
    "MASTER_PORT is no port": ({**TORCHRUN, "MASTER_PORT": "65536"}, "MASTER_PORT=65536"),
    "Open MPI without a size": ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE"),
    "a broken step": ({**STEP, "SLURM_PROCID": "4"}, "SLURM_PROCID=4"),
    "a PBS task that knows no size": (PBS_TASK, "PBS does not tell a task how many there are"),
    "a PBS task number that is none": ({**PBS_TASK, "PBS_TASKNUM": "?"}, "PBS_TASKNUM=?"),
}


@pytest.mark.parametrize(("env", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_variable_is_named_with_its_value(env, words):
    with pytest.raises(MusterError) as caught:
        detect(env)
    assert words in caught.value.message
    assert caught.value.exit_code == 2


def test_the_reason_names_the_variables_that_decided():
    reason = detect({**ALLOCATION, **OPEN_MPI}).reason
    assert "OMPI_COMM_WORLD_RANK=3" in reason
    assert "first host of SLURM_JOB_NODELIST" in reason
    assert f"port {job_port('2080440321')} is made from the job's id (PMIX_NAMESPACE)" in reason
    assert "MASTER_ADDR is not set" in detect(OPEN_MPI).reason


def test_a_spawned_worker_gives_its_own_rank():
    found = from_arguments({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}, 1, 2, None)
    assert (found.rank, found.size, found.master_addr, found.master_port) == (1, 2, "127.0.0.1", 29501)
    with pytest.raises(MusterError, match="rank=2"):
        from_arguments({}, 2, 2, None)


@given(st.integers(0, 50), st.integers(1, 50))
def test_any_launcher_accepts_exactly_the_ranks_below_the_size(rank, size):
    for rank_name, size_name in (("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        env = {rank_name: str(rank), size_name: str(size)}
        if rank < size:
            assert (detect(env).rank, detect(env).size) == (rank, size)
        else:
            with pytest.raises(MusterError):
                detect(env)


RISING = st.sets(st.integers(0, 90), min_size=1, max_size=4).map(sorted)


@given(RISING, RISING, st.sampled_from(["", "-ib", ".site"]), st.sampled_from(["", ",zz", ",b[1-2]"]))
def test_the_first_host_is_the_one_clustershell_finds(racks, nodes, suffix, rest):
    def bracket(numbers):
        return "[" + ",".join(f"{n:02d}-{n + 1:02d}" for n in numbers) + "]"

    name = f"rack{bracket(racks)}-gpu{bracket(nodes)}{suffix}"
    assert first_host(name + rest) == NodeSet(name)[0]  # rising numbers, because ClusterShell sorts


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("box", "box"),
        ("a[1-2]b[3-4],c", "a1b3"),
        ("a[1-2],b[3-4]-ib", "a1"),
        ("gpu[03,07-09]-ib", "gpu03-ib"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_nodelist(nodelist, host):
    assert first_host(nodelist) == host


def test_tasks_per_node_are_read_in_slurms_short_form():
    assert [count_on_node("2(x2),1", node) for node in range(4)] == [2, 2, 1, None]
    assert count_on_node("many", 0) is None


@given(st.text(max_size=40))
def test_a_jobs_port_is_fixed_unprivileged_and_below_the_ephemeral_range(job):
    port = job_port(job)
    assert port == job_port(job)
    assert 1024 < FIRST_JOB_PORT <= port < FIRST_JOB_PORT + JOB_PORTS < 29400

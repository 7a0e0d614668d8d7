"""Which launcher started a process, determined only from a mapping."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engines.rank_variables import Clue
from muster.errors import MusterError
from muster.rank.world.detect import detect, from_arguments
from muster.rank.world.master_address import DEFAULT_PORT, FIRST_JOB_PORT, JOB_PORTS, Meeting, job_port, meet

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
    "OMPI_MCA_orte_hnp_uri": "2080440320.0;tcp://10.77.0.1,172.17.0.1:46773",
    "OMPI_MCA_orte_node_regex": "login,gpu[2:3-4],gpu[3:101]-ib@0(4)",
}
# Open MPI 5 says nothing about hosts.
OPEN_MPI_5 = {
    **{name: OPEN_MPI[name] for name in OPEN_MPI if name.startswith("OMPI_COMM")},
    "PMIX_NAMESPACE": "prterun-login-48@1",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "5"}
PALS = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2", "PALS_APID": "a-b-c"}
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


def meet_at(job_id, *hosts):
    return meet(job_id, Clue(hosts=hosts, reason=""))


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
        ("mpirun (Open MPI)", 3, 4, 1, 2, "10.77.0.1", None),
    ),
    "mpirun of Open MPI 5 without an address": (
        OPEN_MPI_5,
        [],
        ("mpirun (Open MPI)", 3, 4, 1, 2, None, None),
    ),
    "mpirun on one host": (
        {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"},
        [],
        ("mpirun (Open MPI)", 3, 4, 3, 4, "127.0.0.1", None),
    ),
    "mpirun inside Slurm leaves its daemon's step variables in the ranks": (
        {**ALLOCATION, **STEP, **OPEN_MPI, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
        [],
        ("mpirun (Open MPI)", 3, 4, 1, 2, "gpu03", None),
    ),
    "mpiexec of MPICH": (
        HYDRA,
        [],
        ("mpiexec (MPICH or Intel MPI)", 3, 4, 1, 2, None, None),
    ),
    "mpiexec of MPICH inside Slurm": (
        {**STEP, **HYDRA, "SLURM_PROCID": "0", "MASTER_ADDR": "h1"},
        [],
        ("mpiexec (MPICH or Intel MPI)", 3, 4, 1, 2, "h1", None),
    ),
    "Cray's PALS": (
        {**PALS, "MASTER_ADDR": "h1"},
        [],
        ("mpiexec (MPICH or Intel MPI)", 3, 4, 1, 2, "h1", None),
    ),
    "Cray's PALS without an address": (PALS, [], ("mpiexec (MPICH or Intel MPI)", 3, 4, 1, 2, None, None)),
    "srun": (STEP, [], ("srun", 3, 4, 1, 2, "gpu03", None)),
    "srun --mpi=pmi2": (
        {**STEP, "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "11", "PMI_JOBID": "77.0"},
        [],
        ("srun", 3, 4, 1, 2, "gpu03", None),
    ),
    "the shell of salloc on a compute node": (
        {**STEP, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},
        [],
        ("python", 0, 1, 0, 1, "127.0.0.1", None),
    ),
    "srun with WORLD_SIZE exported by the job script": (
        {**STEP, "WORLD_SIZE": "4", "MASTER_ADDR": "gpu03", "MASTER_PORT": "29501"},
        [],
        ("srun", 3, 4, 1, 2, "gpu03", 29501),
    ),
    "srun on one host": (
        {**STEP, "SLURM_NODEID": "0", "SLURM_LOCALID": "3", "SLURM_STEP_TASKS_PER_NODE": "4"},
        [],
        ("srun", 3, 4, 3, 4, "127.0.0.1", None),
    ),
    "an sbatch script": (ALLOCATION, [], ("python", 0, 1, 0, 1, "127.0.0.1", None)),
    "a PBS script": (PBS_SCRIPT, [], ("python", 0, 1, 0, 1, "127.0.0.1", None)),
    "a task of OpenPBS on each host": (
        {**PBS_TASK, "WORLD_SIZE": "2", "MASTER_ADDR": "n1"},
        [],
        ("PBS task", 1, 2, 0, 1, "n1", None),
    ),
    "a task of OpenPBS on the first host": (
        {**PBS_SCRIPT, "PBS_TASKNUM": "00000004", "WORLD_SIZE": "2", "MASTER_ADDR": "n1"},
        [],
        ("PBS task", 0, 2, 0, 1, "n1", None),
    ),
    "a task of Torque": (
        {**PBS_TASK, "PBS_TASKNUM": "3", "PBS_VNODENUM": "3", "PBS_NP": "4", "MASTER_ADDR": "n1"},
        [],
        ("PBS task", 3, 4, None, None, "n1", None),
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
    "RANK beyond WORLD_SIZE": ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 is out of range for WORLD_SIZE=4"),
    "LOCAL_RANK is no number": ({**TORCHRUN, "LOCAL_RANK": "x"}, "LOCAL_RANK=x"),
    "LOCAL_RANK beyond LOCAL_WORLD_SIZE": ({**TORCHRUN, "LOCAL_RANK": "2"}, "local rank 2"),
    "MASTER_PORT is no port": ({**TORCHRUN, "MASTER_PORT": "65536"}, "MASTER_PORT=65536"),
    "Open MPI without a size": ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE"),
    "a broken step": ({**STEP, "SLURM_PROCID": "4"}, "SLURM_PROCID=4"),
    "a broken node list": ({**STEP, "SLURM_STEP_NODELIST": "gpu[3"}, "SLURM_STEP_NODELIST: this bracket"),
    "broken counts": ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "many"}, "SLURM_STEP_TASKS_PER_NODE=many"),
    "a PBS task that knows no size": (PBS_TASK, "PBS does not provide the number of tasks"),
    "a PBS task number that is none": ({**PBS_TASK, "PBS_TASKNUM": "?"}, "PBS_TASKNUM=?"),
}


@pytest.mark.parametrize(("env", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_variable_is_named_with_its_value(env, words):
    with pytest.raises(MusterError) as caught:
        detect(env)
    assert words in caught.value.message
    assert caught.value.exit_code == 2


MEETINGS = {
    "srun looks on all hosts of the step": (STEP, meet_at("77 0", "gpu03", "gpu04")),
    "mpirun of Open MPI 4 looks beside mpirun, then on all hosts": (
        OPEN_MPI,
        meet_at(
            "2080440321 2080440320.0;tcp://10.77.0.1,172.17.0.1:46773",
            *("10.77.0.1", "172.17.0.1", "login", "gpu03", "gpu04", "gpu101-ib"),
        ),
    ),
    "mpirun of Open MPI 4 on its own host knows no others": (
        {name: OPEN_MPI[name] for name in OPEN_MPI if name != "OMPI_MCA_orte_node_regex"},
        meet_at("2080440321 2080440320.0;tcp://10.77.0.1,172.17.0.1:46773", "10.77.0.1", "172.17.0.1"),
    ),
    "mpirun of Open MPI 5 asks": (OPEN_MPI_5, replace(meet_at("prterun-login-48@1"), ask="PMIx")),
    "mpirun in a Slurm job looks on all hosts of the job": (
        {**ALLOCATION, **OPEN_MPI_5},
        meet_at("prterun-login-48@1", "gpu03", "gpu04"),
    ),
    "mpiexec of MPICH asks": (HYDRA, Meeting(key="", port=0, ask="PMI")),
    "mpiexec of MPICH asks for the port only": (
        {**HYDRA, "MASTER_ADDR": "h1"},
        Meeting(key="", port=0, hosts=("h1",), ask="PMI"),
    ),
    "an address without a port": ({**STEP, "MASTER_ADDR": "h7"}, meet_at("77 0", "h7")),
    "a port without an address": ({**STEP, "MASTER_PORT": "29501"}, meet_at("77 0", "gpu03", "gpu04")),
    "address and port need no meeting": ({**STEP, "MASTER_ADDR": "h7", "MASTER_PORT": "29501"}, None),
    "no id and no address": ({"RANK": "0", "WORLD_SIZE": "2"}, None),
}


@pytest.mark.parametrize(("env", "meeting"), MEETINGS.values(), ids=MEETINGS.keys())
def test_ranks_look_for_rank_0_where_it_may_be(env, meeting):
    if meeting is not None and meeting.ask != "PMI":
        meeting = replace(meeting, munge="SLURM_JOB_ID" in env)
    assert detect(env).meeting == meeting


def test_the_reason_names_the_variables_that_decided():
    reason = detect({**ALLOCATION, **OPEN_MPI_5}).reason
    assert "OMPI_COMM_WORLD_RANK=3" in reason
    assert "from gpu03 on, the first host of SLURM_JOB_NODELIST" in reason
    assert f"at port {job_port('prterun-login-48@1')}, which is derived from the job id (PMIX_NAMESPACE)" in reason
    assert "where mpirun runs (OMPI_MCA_orte_hnp_uri)" in detect(OPEN_MPI).reason
    assert "MASTER_ADDR is not set" in detect({"RANK": "0", "WORLD_SIZE": "2"}).reason


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


@given(st.text(max_size=40))
def test_a_jobs_port_is_fixed_unprivileged_and_below_the_ephemeral_range(job):
    port = job_port(job)
    assert port == job_port(job)
    assert 1024 < FIRST_JOB_PORT <= port < FIRST_JOB_PORT + JOB_PORTS < 29400

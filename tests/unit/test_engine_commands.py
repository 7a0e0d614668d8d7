"""The command lines of slurm, pbs and mpi, and what the words of their programs mean."""

from __future__ import annotations

import sys

import pytest

from muster.agent import dial_back
from muster.engines.allocation import Allocation
from muster.engines.engine import ORDER_FILE, AgentSpec, Choice, StartCommand, leaders
from muster.engines.mpi.engine import MpiEngine, mpirun_command
from muster.engines.mpi.local_mpi import Mpi, identify
from muster.engines.pbs.engine import (
    PbsEngine,
    PbsOverSsh,
    attached,
    is_misplaced,
    names_this_machine,
    pbsdsh_commands,
)
from muster.engines.slurm.engine import SlurmEngine, srun_commands
from muster.engines.slurm.salloc import salloc_argv
from muster.errors import HostError, MusterError, UsageError
from muster.hosts import Host, parse_hosts
from muster.plan import make_plan
from muster.spec import RunSpec

OPENMPI = Mpi(program="mpirun", flavour="openmpi", version=4)


def agents(*names: str) -> list[AgentSpec]:
    return [AgentSpec(host=Host(name=name), name=name, key=name) for name in names]


# --- Slurm ----------------------------------------------------------------------------------------------------


def slurm(*names: str, groups: tuple[int, ...] = (), of: int | None = None) -> list[str]:
    hosts = tuple(Host(name=f"n{number}") for number in range(1, (of or len(names)) + 1))
    allocation = Allocation(kind="Slurm allocation", id="7", hosts=hosts, groups=groups)
    (command,) = srun_commands(allocation, agents(*names), python=None, box=None)
    return list(command.argv)


def test_one_srun_starts_one_agent_on_each_host_and_lets_the_ranks_share_its_cpus():
    argv = slurm("n1", "n2")
    assert argv[:4] == ["srun", "--nodes=2", "--ntasks=2", "--nodelist=n1,n2"]
    assert {"--ntasks-per-node=1", "--overlap", "--cpu-bind=none", "--input=none"} <= set(argv)
    assert argv[-3:] == [sys.executable, "-c", dial_back.COMMAND]


def test_a_heterogeneous_job_is_one_srun_over_its_groups():
    argv = slurm("n1", "n2", "n3", groups=(0, 1, 1))
    middle = argv.index(":")
    assert argv[:4] == ["srun", "--het-group=0", "--nodes=1", "--ntasks=1"]
    assert argv[middle + 1 : middle + 4] == ["--het-group=1", "--nodes=2", "--ntasks=2"]
    assert argv[4:middle] == argv[middle + 4 :], "the same agent in both"
    assert not any(word.startswith("--nodelist") for word in argv)
    with pytest.raises(UsageError, match="1 of the 3 hosts"):
        slurm("n1", of=3, groups=(0, 1, 1))


def test_what_was_asked_of_the_jobs_tasks_is_not_asked_of_the_agents():
    unset = SlurmEngine().unset
    assert {"SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK", "SLURM_CPU_BIND"} <= set(unset)
    assert "SLURM_JOB_ID" not in unset


def test_a_rank_finds_the_variables_srun_would_have_given_it():
    plan = make_plan("j", parse_hosts("a:2,b:1"), threads=[0, 0], restarts=0, user_env={})
    env = SlurmEngine().rank_env(plan, 2)
    assert (env["SLURM_PROCID"], env["SLURM_LOCALID"], env["SLURM_NODEID"]) == ("2", "0", "1")
    assert (env["SLURM_NTASKS"], env["SLURM_TASKS_PER_NODE"]) == ("3", "2,1")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("slurmstepd: error: *** STEP 3.0 ON h1 CANCELLED AT 2026-11-15T07:18:49 ***", "canceled (scancel)"),
        ("slurmstepd: error: *** STEP 3.0 ON h1 CANCELLED AT 2026-11-15T07:18:49 DUE TO TIME LIMIT ***", "time limit"),
        ("slurmstepd: error: *** JOB 3 ON h1 CANCELLED AT 2026-11-15T07:18:49 DUE TO NODE FAILURE ***", "hosts failed"),
        ("error: *** STEP 3.0 ON h1 CANCELLED AT 2026-11-15T07:18:49 DUE TO PREEMPTION ***", "another job"),
        ("error: *** JOB 3 ON h1 CANCELLED AT 2026-11-15T07:18:49 DUE TO SOME THING ***", "some thing"),
    ],
)
def test_slurms_reason_for_ending_a_job_is_reported_in_plain_words(line: str, reason: str):
    said = SlurmEngine().why_ended(line)
    assert said is not None
    assert said.startswith("Slurm ended job 3: ")
    assert reason in said


def test_other_lines_of_srun_are_no_reason():
    assert SlurmEngine().why_ended("srun: Job step aborted: Waiting up to 4 seconds for job step to finish.") is None


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "slurmstepd: error: execve(): /no/python: No such file or directory\nsrun: error: h2: task 1: Exited",
            "/no/python",
            "--python",
        ),
        (
            "srun: error: Unable to confirm allocation for job 9: Invalid job id specified",
            "job 9",
            "allocation has ended",
        ),
        ("muster: h2 cannot reach muster at port 4 of 10.0.0.1 (timed out)", "h2 cannot reach", "muster submit"),
        ("muster: Python 3.9 or newer is required, h2 has 3.6", "3.6", "--python"),
        ("srun: error: Something new", "Something new", "--nodes=1"),
        ("", "exit code 1", "srun"),
    ],
)
def test_errors_of_srun_are_explained(text: str, message: str, hint: str):
    error = SlurmEngine().explain(StartCommand(argv=("srun", "--nodes=1", "--ntasks=1", "x"), agents=()), 1, text)
    assert message in error.message
    assert "srun: error" not in error.message
    assert hint in (error.hint or "")


def test_an_allocation_of_ones_own_runs_the_same_command_inside_salloc_and_the_users_options_win():
    argv = salloc_argv(["-N2", "--job-name=mine"], "train.py", ["python", "-m", "muster", "run", "train.py"])
    assert argv == [
        *("salloc", "--job-name=train.py", "-N2", "--job-name=mine"),
        *("python", "-m", "muster", "run", "train.py"),
    ]


# --- PBS ------------------------------------------------------------------------------------------------------


def pbs(library_path: str | None = None, python: str | None = None) -> tuple[StartCommand, ...]:
    lines = {"n1": 0, "n2": 4}
    return pbsdsh_commands(
        agents("n1", "n2"), lines, pbsdsh="pbsdsh", python=python, library_path=library_path, box=None
    )


def test_each_host_gets_one_task_by_its_first_line_and_reads_its_order_from_a_file():
    first, second = pbs()
    assert first.argv[:4] == ("pbsdsh", "-n", "0", "--")
    assert second.argv[:4] == ("pbsdsh", "-n", "4", "--")
    assert second.argv[4:] == (sys.executable, "-c", dial_back.COMMAND, ORDER_FILE, "n2")


def test_a_python_of_a_module_finds_its_libraries_in_the_empty_environment_of_a_task():
    assert pbs(library_path="/sw/lib")[0].argv[4:6] == ("/usr/bin/env", "LD_LIBRARY_PATH=/sw/lib")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (254, "/my/python not found"),
        (dial_back.NO_ORDER, "job directory"),
        (dial_back.OLD_PYTHON, "older than Python 3.9"),
        (dial_back.NO_WAY, "cannot reach"),
        (1, "code 1"),
    ],
)
def test_pbsdsh_reports_only_a_number_and_it_is_explained(status: int, words: str):
    command = pbs(python="/my/python", library_path="/sw/lib")[1]
    error = PbsEngine().explain(command, 0, f"pbsdsh: task 0x00000001 exit status {status}")
    assert isinstance(error, HostError)
    assert error.message.startswith("n2: ")
    assert words in error.message
    assert error.hint


def test_words_of_pbsdsh_itself_are_shown():
    error = PbsEngine().explain(pbs()[0], 1, "pbsdsh: tm_init failed, rc = TM_ESYSTEM (17000)")
    assert "tm_init failed" in error.message


def test_over_ssh_pbs_learns_whose_process_it_is():
    assert attached("12.server", "/opt/pbs/bin/pbs_attach") == "/opt/pbs/bin/pbs_attach -j 12.server -s"
    assert attached("23[1].server", "pbs_attach") == "pbs_attach -j '23[1].server' -s"


@pytest.mark.parametrize(
    ("name", "reported", "is_wrong"),
    [
        ("h2", "h2", False),
        ("h3.cluster.example", "h3", False),
        ("h3", "h2", True),  # after `sort -u` of n lines per host, `pbsdsh -n 1` is the first host again
        ("h3", "gpu-node-3", False),  # PBS has another name for the host
        ("h3", "login", True),  # the file had lost the lines of this machine
        ("alias-of-login", "login", False),
    ],
)
def test_an_agent_on_another_host_than_its_own_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, reported: str, is_wrong: bool
):
    monkeypatch.setattr("socket.gethostname", lambda: "login.cluster.example")
    hosts = ["h2", "h3", "h3.cluster.example"]
    assert is_misplaced(name, reported, hosts, is_here=lambda name: name == "alias-of-login") == is_wrong


def test_a_changed_nodefile_is_refused_with_both_names():
    error = PbsEngine().misplaced(agents("h3")[0], "h2", agents("h2", "h3"))
    assert error is not None
    assert (
        error.message == "h3: pbsdsh started its agent on h2, because PBS_NODEFILE differs from the file that PBS wrote"
    )
    assert error.hint
    assert PbsEngine().misplaced(agents("h3")[0], "h3", agents("h2", "h3")) is None


def test_a_name_of_this_machine_is_known_by_its_address():
    assert names_this_machine("localhost")
    assert names_this_machine("no-such-host.invalid"), "nothing is proven"
    assert not names_this_machine("192.0.2.1")


@pytest.mark.parametrize(
    ("own", "names", "here"),
    [
        ("h3", ["h2.cluster.example", "h3.cluster.example"], "h3.cluster.example"),
        ("h3", ["h2", "h3"], "h3"),
        ("h3.cluster.example", ["h2", "h3"], "h3"),
        ("h3", ["h3.a.example", "h3.b.example"], None),  # it could be either
    ],
)
def test_over_ssh_pbs_does_not_log_in_to_its_own_host(
    monkeypatch: pytest.MonkeyPatch, own: str, names: list[str], here: str | None
):
    monkeypatch.setattr("socket.gethostname", lambda: own)
    hosts = tuple(Host(name=name) for name in names)
    spec = RunSpec(target="train.py", pbs_start="ssh")
    found = PbsEngine().launch(Choice(engine=PbsEngine(), hosts=hosts), spec, "/job")
    assert [command.agents[0].name for command in found.commands if not command.remote] == [here] * bool(here)


def test_a_job_is_cancelled_from_any_host_by_its_scheduler():
    job = {"PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": "23[1].srv"}
    assert PbsEngine().cancel_command(job) == PbsOverSsh().cancel_command(job) == "qdel '23[1].srv'"
    assert SlurmEngine().cancel_command({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}) == "scancel 7"
    assert PbsEngine().cancel_command({}) == SlurmEngine().cancel_command({}) == ""


# --- MPI ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "flavour", "version"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to …", "openmpi", 4),
        ("mpirun (Open MPI) 5.0.3", "openmpi", 5),
        ("HYDRA build details:\n    Version:                                 4.0.2", "mpich", 4),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.6 Build 20220227", "intel", 2021),
    ],
)
def test_an_mpi_is_known_by_what_it_says_of_itself(text: str, flavour: str, version: int):
    assert identify("mpirun", text) == Mpi(program="mpirun", flavour=flavour, version=version)  # type: ignore[arg-type]


def test_a_program_that_is_no_mpi_is_not_taken_for_one():
    assert identify("mpiexec", "PBS mpiexec wrapper 1.0") is None


def mpi(flavour: str, version: int = 0, **settings: object) -> StartCommand:
    launcher = Mpi(program="mpirun", flavour=flavour, version=version)  # type: ignore[arg-type]
    return mpirun_command(launcher, parse_hosts("a:2,b:1"), python="/p", **settings)  # type: ignore[arg-type]


def test_open_mpi_gets_the_hosts_with_their_slots_and_the_options_training_needs():
    argv = list(mpi("openmpi", 4, exported=["PATH"], networks=["10.0.0.0/24"], args=["--verbose"]).argv)
    assert argv == [
        *("mpirun", "-np", "3", "-H", "a:2,b:1", "--bind-to", "none", "--map-by", "slot"),
        *("--mca", "oob_tcp_if_include", "10.0.0.0/24", "-x", "MUSTER_DIAL", "-x", "PATH", "--verbose"),
        *("/p", "-c", dial_back.COMMAND),
    ]


def test_open_mpi_5_has_another_name_for_the_network_of_its_daemons():
    argv = list(mpi("openmpi", 5, networks=["10.0.0.0/24"]).argv)
    assert argv[argv.index("--prtemca") :][:3] == ["--prtemca", "prte_if_include", "10.0.0.0/24"]


def test_mpich_and_intel_mpi_get_unequal_hosts_in_their_own_way():
    assert list(mpi("mpich").argv)[1:5] == ["-np", "3", "-hosts", "a:2,b:1"]
    argv = list(mpi("intel").argv)
    assert argv[1:3] == ["-genvlist", "MUSTER_DIAL"]
    block = ["/p", "-c", dial_back.COMMAND]
    assert argv[3:] == ["-host", "a", "-n", "2", *block, ":", "-host", "b", "-n", "1", *block]


def test_every_rank_has_an_agent_and_the_first_of_a_host_speaks_for_it():
    found = mpi("openmpi", 4).agents
    assert [(agent.name, agent.rank, agent.key) for agent in found] == [("a", 0, "0"), ("a", 1, "1"), ("b", 2, "2")]
    assert leaders(found) == [0, 2]


def test_mpirun_must_know_how_many_ranks_a_host_takes():
    with pytest.raises(UsageError, match="give the number of ranks per host: -H ") as caught:
        mpirun_command(OPENMPI, parse_hosts("a"), python=None)
    assert "-H a:8" in (caught.value.hint or "")


def test_a_user_or_a_port_is_refused_with_mpirun():
    for written in ("bob@b:1", "ssh://b:2222:1"):
        with pytest.raises(UsageError, match="user or a port"):
            mpirun_command(OPENMPI, parse_hosts(written), python=None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mpirun has detected an attempt to run as root.\nRunning as root is …", "refuses to run as root"),
        ("ssh: Could not resolve hostname nowhere: Name or service not known", "nowhere: ssh could not resolve"),
        ("There are not enough slots available in the system", "enough slots"),
        (
            "[proxy:0:0@h1] HYDU_create_process: execvp error on file /no/python (No such file or directory)",
            "/no/python",
        ),
        ("root@h2: Permission denied (publickey).", "could not log in"),
        ("muster: h2 cannot reach muster at port 4 of 10.0.0.1 (timed out)", "h2 cannot reach"),
        ("-----\nA new kind of trouble\n-----", "A new kind of trouble"),
    ],
)
def test_errors_of_mpirun_are_explained(text: str, words: str):
    error = MpiEngine().explain(mpi("openmpi", 4), 1, text)
    assert isinstance(error, MusterError)
    assert words in error.message
    assert error.hint


def test_mpis_own_traffic_takes_the_interface_the_hosts_found():
    from dataclasses import replace

    plan = make_plan("j", parse_hosts("a:1"), threads=[0], restarts=0, user_env={})
    engine = MpiEngine()
    assert dict(engine.rank_env(plan, 0)) == {}
    place = replace(plan.placements[0], env={"GLOO_SOCKET_IFNAME": "ib0"})
    assert engine.rank_env(replace(plan, placements=(place,)), 0)["OMPI_MCA_btl_tcp_if_include"] == "ib0"


# --- all of them ----------------------------------------------------------------------------------------------


def test_nothing_secret_and_no_shell_syntax_is_in_the_command_that_dials():
    assert "'" not in dial_back.COMMAND
    assert "\n" not in dial_back.COMMAND
    assert "\\" not in dial_back.COMMAND
    compile(dial_back.COMMAND, "<command>", "exec")

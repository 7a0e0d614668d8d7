"""Which engine runs a job: from what the user said and what the environment shows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from muster.engines.allocation import Allocation
from muster.engines.choice import choose
from muster.engines.engine import Choice
from muster.engines.pbs import engine as pbs_engine
from muster.engines.pbs.environment import read_pbs
from muster.errors import MusterError, UsageError
from muster.hosts import Host, parse_hosts
from muster.spec import RunSpec

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_NTASKS": "7",
    "SLURM_TASKS_PER_NODE": "2(x2),3",
}
PBS = {"PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": "12.server"}
QSTAT = "Job Id: 12.server\n    exec_vnode = (n1:ncpus=4:ngpus=2)+(n2:ncpus=4:ngpus=1)\n"


def pbs_here(env: Mapping[str, str]) -> Allocation:
    return read_pbs(env, "n1\nn2\n", QSTAT)


@pytest.fixture(autouse=True)
def _in_a_pbs_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pbs_engine, "read_pbs_here", pbs_here)


def choice(env: Mapping[str, str] | None = None, **asked: object) -> Choice:
    return choose(RunSpec(target="t.py", **asked), env or {})  # type: ignore[arg-type]


def names(chosen: Choice) -> list[str]:
    return [host.name for host in chosen.hosts]


def test_without_hosts_and_without_a_job_it_is_this_machine_and_nothing_is_said():
    chosen = choice()
    assert chosen.engine.name == "local"
    assert len(chosen.hosts) == 1
    assert chosen.said == ()


def test_named_hosts_outside_a_job_mean_ssh():
    chosen = choice(hosts=parse_hosts("a:2,b"))
    assert (chosen.engine.name, names(chosen)) == ("ssh", ["a", "b"])


def test_inside_a_slurm_allocation_its_hosts_are_used_and_it_is_said():
    chosen = choice(SLURM)
    assert (chosen.engine.name, names(chosen)) == ("slurm", ["n1", "n2", "n3"])
    assert [host.tasks for host in chosen.hosts] == [2, 2, 3]
    assert chosen.said[0] == "detected: Slurm allocation 4711, 3 hosts"


def test_inside_a_pbs_job_its_hosts_and_gpus_are_used():
    chosen = choice(PBS)
    assert (chosen.engine.name, names(chosen)) == ("pbs", ["n1", "n2"])
    assert [host.slots for host in chosen.hosts] == [2, 1]
    assert chosen.said[0] == "detected: PBS job 12.server, 2 hosts"


def test_slurm_is_looked_for_before_pbs_because_a_plugin_of_slurm_sets_pbs_variables():
    assert choice({**PBS, **SLURM}).engine.name == "slurm"


def test_nproc_wins_over_the_gpus_the_scheduler_counts():
    assert [host.slots for host in choice(PBS, nproc=4).hosts] == [None, None]


def test_picked_hosts_of_the_allocation_stay_with_its_engine_and_keep_what_was_written():
    chosen = choice(SLURM, hosts=parse_hosts("n3:0,2,n1.cluster.org"))
    assert chosen.engine.name == "slurm"
    assert names(chosen) == ["n3", "n1"]
    assert chosen.hosts[0].gpus == (0, 2)
    assert chosen.hosts[1].tasks == 2


def test_other_hosts_inside_an_allocation_mean_ssh_and_that_is_said():
    chosen = choice(SLURM, hosts=parse_hosts("elsewhere"))
    assert chosen.engine.name == "ssh"
    assert chosen.said == ("detected: Slurm allocation 4711, 3 hosts; -H names hosts outside it, so Muster uses ssh",)


def test_a_host_outside_the_allocation_is_refused_where_slurm_was_asked_for():
    with pytest.raises(MusterError, match=r"elsewhere: not part of Slurm allocation 4711.*n1, n2, n3"):
        choice(SLURM, engine="slurm", hosts=parse_hosts("elsewhere"))


@pytest.mark.parametrize(
    ("engine", "words"),
    [("slurm", "not inside a Slurm allocation"), ("pbs", "not inside a PBS job"), ("ssh", "--engine ssh needs hosts")],
)
def test_an_engine_that_is_not_there_is_refused_with_what_to_type(engine: str, words: str):
    with pytest.raises(UsageError, match=words) as caught:
        choice(engine=engine)
    assert caught.value.hint


def test_the_engine_can_always_be_overridden():
    assert choice(SLURM, engine="local").engine.name == "local"
    assert choice(SLURM, engine="ssh", hosts=parse_hosts("a")).engine.name == "ssh"
    assert choice({**SLURM, **PBS}, engine="pbs").engine.name == "pbs"


def test_local_refuses_other_hosts():
    with pytest.raises(UsageError, match="elsewhere is not this machine"):
        choice(engine="local", hosts=parse_hosts("elsewhere"))


def test_mpi_takes_the_hosts_of_the_job_or_those_named_or_this_machine():
    assert names(choice(SLURM, engine="mpi")) == ["n1", "n2", "n3"]
    assert choice(SLURM, engine="mpi").engine.name == "mpi"
    assert names(choice(engine="mpi", hosts=parse_hosts("a:2,b:2"))) == ["a", "b"]
    assert len(choice(engine="mpi").hosts) == 1


def test_virtual_hosts_are_reached_by_ssh_even_inside_an_allocation():
    assert choice(SLURM, hosts=(Host(name="h1"),), lab=1).engine.name == "ssh"
    with pytest.raises(UsageError, match="--lab"):
        choice(hosts=(Host(name="h1"),), lab=1, engine="slurm")


def test_a_controller_in_every_task_of_a_step_is_refused():
    step = {**SLURM, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "7", "SLURM_STEP_NODELIST": "n[1-3]"}
    with pytest.raises(UsageError, match="one of the 7 tasks"):
        choice(step)

"""The lab as a Slurm cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from waiting import patience, wait_until

from muster.errors import LabError
from muster.lab import Lab, slurm_service
from muster.lab.system_programs import SYSTEM_PATH

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.getuid() != 0, reason="Slurm needs a lab started as root"),
    pytest.mark.skipif(
        shutil.which("slurmctld", path=SYSTEM_PATH) is None,
        reason="apt-get install slurmctld slurmd slurm-client munge",
    ),
]

GPUS = {"h1": 2, "h2": 1}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(3, slurm=True, gpus=GPUS) as lab:
        yield lab


def shell(lab: Lab, command: str, *, host: str = "h1", timeout: float = 60) -> str:
    """The output of a shell command, without the environment of the tests."""
    env = ["env", "-i", f"PATH={SYSTEM_PATH}", "HOME=/root"]
    done = lab.run(host, [*env, "sh", "-c", command], timeout=timeout)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def state(lab: Lab, job: str) -> str:
    return shell(lab, f"scontrol show job {job} -o").partition("JobState=")[2].split()[0]


def submit(lab: Lab, script: str, *options: str) -> str:
    """Submit a batch script, and return its number when it runs."""
    done = lab.run("h1", ["sbatch", "--parsable", "--output=/tmp/%j", *options], input=script, timeout=30)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    wait_until(f"job {job} to run", lambda: state(lab, job) == "RUNNING", 60)
    return job


def test_a_command_runs_on_every_host_from_any_host(lab: Lab) -> None:
    assert sorted(shell(lab, "srun -N3 -n6 --ntasks-per-node=2 hostname").split()) == [
        "h1",
        "h1",
        "h2",
        "h2",
        "h3",
        "h3",
    ]
    assert sorted(shell(lab, "srun -N3 hostname", host="h3").split()) == ["h1", "h2", "h3"]


def test_slurm_gives_the_pretended_gpus_away_and_no_more_of_them(lab: Lab) -> None:
    shown = "echo $SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES:-none}"
    assert shell(lab, f"srun --gpus-per-node=2 sh -c '{shown}'") == "h1 0,1\n"
    assert sorted(shell(lab, f"srun -N2 --gpus-per-node=1 sh -c '{shown}'").splitlines()) == ["h1 0", "h2 0"]
    assert shell(lab, f"srun -w h3 sh -c '{shown}'") == "h3 none\n"
    refused = lab.run("h1", ["srun", "-N2", "--gpus-per-node=2", "true"], timeout=30)
    assert "Requested node configuration is not available" in refused.stderr


def test_gpus_are_character_devices_and_as_many_as_asked_for(lab: Lab) -> None:
    for host in lab.names:
        found = shell(lab, 'for file in /dev/nvidia[0-9]*; do [ ! -c "$file" ] || echo "$file"; done', host=host)
        assert len(found.split()) == GPUS.get(host, 0)


def test_an_allocation_and_a_heterogeneous_one_hold_hosts(lab: Lab) -> None:
    assert shell(lab, "salloc -N2 -w h2,h3 sh -c 'echo $SLURM_JOB_NODELIST' 2>/dev/null") == "h[2-3]\n"
    both = "salloc -N1 -w h1 : -N2 -w h2,h3 srun --het-group=0,1 hostname 2>/dev/null"
    assert sorted(shell(lab, both).split()) == ["h1", "h2", "h3"]


def test_scancel_ends_all_that_a_batch_job_runs_anywhere(lab: Lab) -> None:
    job = submit(lab, "#!/bin/sh\ntrap 'echo warned' USR1\nsrun sleep 600 &\nwait; wait\n", "-N3")
    wait_until("the job's processes", lambda: all("sleep 600" in str(lab.processes(host)) for host in lab.names), 40)
    shell(lab, f"scancel --batch --signal=USR1 {job}")
    wait_until("the warning", lambda: "warned" in shell(lab, f"cat /tmp/{job} || true"), 40)
    shell(lab, f"scancel {job}")
    wait_until("the job's end", lambda: not any(lab.processes(host) for host in lab.names), 40)
    wait_until("the job to be cancelled", lambda: state(lab, job) == "CANCELLED", 40)


def test_a_job_that_ignores_its_end_is_killed_soon(lab: Lab) -> None:
    job = submit(lab, "#!/bin/sh\ntrap '' TERM\necho deaf\nwhile :; do sleep 1; done\n")
    wait_until("the script", lambda: "deaf" in shell(lab, f"cat /tmp/{job} || true"), 40)
    begun = time.monotonic()
    shell(lab, f"scancel {job}")
    wait_until("the job's end", lambda: not lab.processes("h1"), 40)
    assert time.monotonic() - begun > 1, "it was to have KillWait seconds"


def test_a_rebooted_node_takes_jobs_again(lab: Lab) -> None:
    lab.crash("h2")
    lab.reboot("h2")
    assert shell(lab, "srun -w h2 hostname") == "h2\n"
    assert len(shell(lab, "ls /dev/nvidia*", host="h2").split()) == 1


def test_with_its_controller_rebooted_the_cluster_is_whole_again(lab: Lab) -> None:
    lab.reboot("h1")
    assert sorted(shell(lab, "srun -N3 hostname").split()) == ["h1", "h2", "h3"]


def test_a_reboot_does_not_wait_for_slurm_where_the_controller_is_off(lab: Lab) -> None:
    lab.crash("h1")
    begun = time.monotonic()
    lab.reboot("h3")
    assert time.monotonic() - begun < slurm_service.START_LIMIT
    lab.reboot("h1")


def test_a_node_that_does_not_come_is_named_with_the_end_of_its_log(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_service, "START_LIMIT", 1.0)
    cluster = slurm_service.Slurm(dict.fromkeys(lab.names, 0))
    shell(lab, "scontrol update NodeName=h2 State=DOWN Reason=test")
    with pytest.raises(LabError, match=r"Slurm on h2 was not ready after 2\.5 s: its node is down") as caught:
        cluster.wait(lab.names, lab.run)
    last = caught.value.message.partition("Last line of /var/log/slurmd.log: ")[2]
    assert last in map(str.strip, shell(lab, "tail -n 5 /var/log/slurmd.log", host="h2").splitlines()), (
        "the log has newer lines"
    )
    assert last
    monkeypatch.undo()
    shell(lab, "scontrol update NodeName=h2 State=RESUME")
    cluster.wait(lab.names, lab.run)


def test_what_keeps_slurm_from_starting_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_service, "NODE", slurm_service.NODE.replace("CPUs=8", "CPUs=many"))
    with pytest.raises(LabError, match=r"^h1 exited before step `up`: slurmctld: error: CPUs value .many. is not"):
        Lab(1, slurm=True).start()


OWNER = """
import subprocess, time
from muster.lab import Lab
with Lab(2, slurm=True) as lab:
    lab.popen("h1", ["srun", "-N2", "sleep", "65431"], stdin=subprocess.DEVNULL)
    while not all("65431" in str(lab.processes(host)) for host in lab.names):
        time.sleep(0.05)
    print(lab._site.folder, *(lab._site.hosts[host].pid_namespace for host in lab.names), flush=True)
    time.sleep(60)
"""


def test_nothing_is_left_when_the_owner_of_a_slurm_lab_is_killed() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    folder, *namespaces = owner.stdout.readline().split()
    assert all(members(namespace) for namespace in namespaces)
    owner.kill()
    owner.communicate(timeout=patience(30))
    wait_until("the end of all", lambda: not os.path.exists(folder) and not any(map(members, namespaces)), 40)


def members(namespace: str) -> list[str]:
    """The processes of a PID namespace."""
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                found.append(pid)
        except OSError:
            pass  # it has ended
    return found

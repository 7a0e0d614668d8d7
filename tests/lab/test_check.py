"""`muster check` and `muster setup ssh` on lab hosts: healthy ones, and some of the scoreboard's faults."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.scoreboard.access_faults import PASSWORD, ask_for_password
from benchmarks.scoreboard.fault import Fault
from benchmarks.scoreboard.faults import FAULTS
from benchmarks.scoreboard.shims import edit_for_one_host
from benchmarks.scoreboard.stage import HOSTS, MUSTER, PROJECT, Stage
from launching import PLAIN, alive
from waiting import ending, patience, wait_until

from muster.lab import Lab
from muster.lab.system_programs import SYSTEM_PATH

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.getuid() != 0, reason="faults and host files need a lab started as root"),
]


ANOTHER_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJ3Z0000000000000000000000000000000000000000"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Hosts that stay whole."""
    with Lab(len(HOSTS)) as lab:
        yield Stage(lab)


def typed(stage: Stage, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command on the first host, in the project."""
    process = stage.lab.popen(
        "h1",
        [MUSTER, *argv],
        cwd=PROJECT,
        env={**PLAIN, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ending(process):
        out, err = process.communicate(timeout=patience(100))
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def wait_for_no_process(stage: Stage, *hosts: str) -> None:
    """An agent ends when its connection does, which may be a moment after the command."""
    wait_until("no process to be left", lambda: not alive(stage.lab, hosts), 20, lambda: str(alive(stage.lab, hosts)))


def test_healthy_hosts_get_a_clean_report(stage: Stage):
    done = typed(stage, "check", "-H", "h1,h2,h3", "--strict", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("s: no problems found\n")
    assert "same on all hosts: Python 3." in done.stdout


def test_a_check_leaves_no_process_and_no_file_behind(stage: Stage):
    state = "/tmp/state-of-check"  # each host has a /tmp of its own, and root's home may get jobs of others meanwhile
    assert typed(stage, "check", "-H", "h1,h2,h3", XDG_STATE_HOME=state).returncode == 0
    wait_for_no_process(stage, *HOSTS)
    assert stage.sh("h1", f"find {state} -type f 2>/dev/null | wc -l") == "0\n"
    assert [stage.sh(host, "ls -A /tmp | grep -c muster || true") for host in HOSTS] == ["0\n"] * len(HOSTS)


QUICK_ONES = [fault for fault in FAULTS if fault.name in (
    "3 hostname is 127.0.1.1",
    "11 firewall closes all other ports",
    "19 no login without a password",
    "20 host key changed",
    "21 a shell profile that talks",
    "24 older code on a host",
    "29 OMP_NUM_THREADS=1",
    "49 GPU busy with another process",
)]  # fmt: skip


@pytest.mark.parametrize("fault", QUICK_ONES, ids=lambda fault: fault.name)
def test_a_fault_is_found_and_its_printed_fix_works(fault: Fault):
    with Lab(len(HOSTS), gpus=fault.gpus) as lab:
        stage = Stage(lab)
        fault.inject(stage)
        report = stage.check(fault.options, fault.script, fault.env)
        found = report.of(fault.row)
        assert found, report.data
        assert report.blamed == set(fault.at)
        assert stage.apply_fix(fault, found[0]["type"]).of(fault.row) == []


def test_a_fault_of_one_host_changes_no_file_that_hosts_share(tmp_path: Path):
    version = tmp_path / "version.py"
    version.write_text("cuda = None\n")
    with Lab(2, bind=(tmp_path,)) as lab:
        stage = Stage(lab)
        edit_for_one_host(stage, "h1", str(version), "s/None/13/")
        edit_for_one_host(stage, "h1", str(version), "s/13/13.0/")
        assert [stage.sh(host, f"cat {version}") for host in HOSTS[:2]] == ["cuda = 13.0\n", "cuda = None\n"]
    assert version.read_text() == "cuda = None\n"


def test_a_dead_host_costs_its_time_out_and_the_others_are_checked():
    with Lab(3) as lab:
        broken = Stage(lab)
        lab.power_off("h3")
        broken.sh("h2", "mount -o remount,size=64m /dev/shm")
        begin = time.monotonic()
        done = typed(broken, "check", "-H", "h1,h2,h3")
        assert time.monotonic() - begin < 60, "ssh alone would try for two minutes"
    assert done.returncode == 3
    assert "error: h3: does not answer" in done.stdout
    assert "warning: h2: /dev/shm is only 64 MB" in done.stdout


def test_a_file_that_hangs_is_reported_and_delays_nothing(stage: Stage):
    stage.sh("h2", "mkfifo /tmp/stale")
    for host in ("h1", "h3"):
        stage.write(host, "/tmp/stale", "")
    done = typed(stage, "check", "-H", "h1,h2,h3", "--data", "/tmp/stale")
    assert "warning: h2: reading /tmp/stale timed out after 3 s" in done.stdout
    assert "unknown: h2: check `data` timed out after 3 s" in done.stdout
    wait_for_no_process(stage, "h2")


@pytest.mark.skipif(shutil.which("slurmctld", path=SYSTEM_PATH) is None, reason="apt-get install slurm-wlm munge")
def test_inside_a_slurm_allocation_its_own_step_is_checked():
    with Lab(2, slurm=True) as lab:
        stage = Stage(lab)
        # Slurm takes the limits of whoever asks along to every host of the job.
        argv = ["prlimit", "--nofile=128:", "salloc", "-N2", MUSTER, "check", "--json"]
        report = stage.report(argv, {"CUDA_VISIBLE_DEVICES": ""})
        assert {finding["hosts"][0] for finding in report.of(32)} == {"h1", "h2"}
        assert stage.check(()).of(32) == []


def test_warnings_count_only_with_strict(stage: Stage):
    argv = ("check", "-H", "h1,h2", "--json")
    done = typed(stage, *argv, OMP_NUM_THREADS="1")
    assert done.returncode == 0
    assert {finding["row"] for finding in json.loads(done.stdout)["findings"]} == {29}
    assert typed(stage, *argv, "--strict", OMP_NUM_THREADS="1").returncode == 1


def test_a_run_prints_findings_and_starts(stage: Stage, tmp_path: Path):
    wait = "import os, time\nwhile not os.path.exists('/tmp/told'): time.sleep(0.05)\nprint('hello')\n"
    stage.write("h1", f"{PROJECT}/hello.py", wait)
    argv = [MUSTER, "run", "--no-zygote", "-H", "h1", "hello.py"]
    with (tmp_path / "err").open("wb") as err:
        env = {**PLAIN, "OMP_NUM_THREADS": "1"}
        null = subprocess.DEVNULL
        process = stage.lab.popen("h1", argv, cwd=PROJECT, env=env, stdin=null, stdout=null, stderr=err)
    with ending(process):
        said = (tmp_path / "err").read_text
        # It may come when the job runs already.
        wait_until("the warning", lambda: "Fix: unset OMP_NUM_THREADS\n" in said(), 30, said)
        assert "warning: h1: OMP_NUM_THREADS=1 leaves 1 of 2 CPUs idle" in said()
        stage.write("h1", "/tmp/told", "")
        assert process.wait(patience(60)) == 0, said()
    done = typed(stage, "run", "--no-check", "--no-zygote", "-H", "h1", "hello.py", OMP_NUM_THREADS="1")
    assert "warning" not in done.stderr


@pytest.mark.torch
def test_a_run_that_would_surely_fail_is_stopped_before_its_ranks_start(stage: Stage):
    stage.write("h1", f"{PROJECT}/hello.py", "print('hello')\n")
    stage.write("h2", f"{PROJECT}/hello.py", "print('hello')\n")
    done = typed(stage, "run", "-H", "h1,h2", "hello.py", GLOO_SOCKET_IFNAME="eth9")
    assert done.returncode == 125
    assert "GLOO_SOCKET_IFNAME=eth9: no such interface (available: eth0)" in done.stderr
    assert "unset GLOO_SOCKET_IFNAME" in done.stderr
    assert "hello" not in done.stdout


@pytest.mark.torch
def test_the_deep_check_measures_links_devices_and_collectives():
    with Lab(2) as lab:
        stage = Stage(lab)
        stage.deep = True
        report = stage.check(())
    # The hosts share the cores of this machine, which may be busy: then one of them was slow and is correctly reported
    # (rows 17 and 30). No packet was lost, and no result was wrong.
    assert [finding for finding in report.data["findings"] if finding["row"] not in (17, 30)] == []
    assert {"network rate", "matrix product"} < set(report.data["measured"])
    assert any(label.startswith("all_reduce of ") for label in report.data["measured"])
    assert set(report.data["measured"]["network rate"]) == {"h1", "h2"}


def test_setup_makes_a_key_shows_host_keys_and_asks_for_the_password_once():
    with Lab(3) as lab:
        stage = Stage(lab)
        ask_for_password(stage, "h2")
        stage.sh("h1", "sed -i '/^h[23],/d' ~/.ssh/known_hosts; rm ~/.ssh/id_ed25519*")
        stage.sh("h1", "sed -i '/IdentityFile/d; /IdentitiesOnly/d' ~/.ssh/config")
        answers = [("[y/N]", "y"), ("password:", PASSWORD)]
        code, said = stage.type(f"{MUSTER} setup ssh -H h2", answers, {})
        assert code == 0, said
        assert "these host keys are not in your known_hosts file" in said
        assert "h2: ED25519 SHA256:" in said
        assert "you have no ssh key yet" in said
        assert said.count("password:") == 1
        assert "h2: login without a password works" in said
        assert stage.sh("h1", "ssh -oBatchMode=yes h2 hostname") == "h2\n"
        # The second time there is nothing to do and nothing to ask.
        code, said = stage.type(f"{MUSTER} setup ssh -H h2", [], {})
        assert code == 0, said
        assert "password:" not in said


def test_setup_prints_the_key_for_a_host_that_accepts_no_passwords():
    with Lab(2) as lab:
        stage = Stage(lab)
        stage.sh("h1", "rm ~/.ssh/id_ed25519*; sed -i '/IdentityFile/d; /IdentitiesOnly/d' ~/.ssh/config")
        code, said = stage.type(f"{MUSTER} setup ssh -H h2", [], {})
        assert code == 1, said
        assert "h2 does not accept passwords; add this line to its ~/.ssh/authorized_keys:" in said
        assert stage.sh("h1", "cat ~/.ssh/id_ed25519.pub").strip() in said
        assert "muster setup ssh" not in said


def test_setup_lets_hosts_log_in_to_each_other_and_tests_every_pair():
    with Lab(3) as lab:
        stage = Stage(lab)
        own_file = "s#^AuthorizedKeys.*#AuthorizedKeysFile .ssh/authorized_keys#"
        for host in ("h2", "h3"):
            stage.sh(host, f"rm ~/.ssh/id_ed25519* ~/.ssh/known_hosts; sed -i '{own_file}' /run/muster-lab/sshd_config")
            stage.restart_sshd(host)
        assert stage.lab.run("h2", ["ssh", "-oBatchMode=yes", "h3", "true"], timeout=30).returncode == 255
        for _ in range(2):
            code, said = stage.type(f"{MUSTER} setup ssh --between -H h2,h3", [], {})
            assert code == 0, said
            assert "(2 pairs tested)" in said
            assert stage.sh("h2", "ssh -oBatchMode=yes h3 hostname") == "h3\n"
            assert int(stage.sh("h3", "wc -l < ~/.ssh/authorized_keys")) == 3  # ours, and one of each host
        stage.lab.power_off("h3")
        code, said = stage.type(f"{MUSTER} setup ssh --between -H h2,h3", [], {})
        assert code == 1
        assert "h3: no " in said


def test_setup_keeps_no_host_key_that_the_user_does_not_know():
    with Lab(2) as lab:
        stage = Stage(lab)
        stage.sh("h1", "sed -i '/^h2,/d' ~/.ssh/known_hosts")
        code, said = stage.type(f"{MUSTER} setup ssh -H h2", [("[y/N]", "n")], {})
        assert code != 0
        assert "the host keys were not accepted" in said
        names = [line.split()[0].split(",") for line in stage.sh("h1", "cat ~/.ssh/known_hosts").splitlines()]
        assert ["h1" in each for each in names] == [True]
        assert "h2" not in names[0]


def test_setup_does_not_take_a_changed_key():
    with Lab(2) as lab:
        other = Stage(lab)
        other.sh("h1", f"sed -i '/^h2,/s/AAAA[^ ]*/{ANOTHER_KEY}/' ~/.ssh/known_hosts")
        code, said = other.type(f"{MUSTER} setup ssh -H h2", [], {})
    assert code == 1
    assert "its host key has changed since you accepted it" in said
    assert "ssh-keygen -R 'h2'" in said


def test_nobody_to_ask_is_an_error_and_not_a_hang(stage: Stage):
    stage.sh("h1", "cp ~/.ssh/known_hosts /tmp/known; sed -i '/^h2,/d' ~/.ssh/known_hosts")
    try:
        process = stage.lab.popen(
            "h1",
            ["setsid", "--wait", MUSTER, "setup", "ssh", "-H", "h2"],
            env=PLAIN,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        _, err = process.communicate(timeout=patience(60))
        assert process.returncode == 125
        assert "no terminal to ask" in err
    finally:
        stage.sh("h1", "cp /tmp/known ~/.ssh/known_hosts")


def test_the_check_of_one_machine_needs_no_other(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "muster", "check", "--json"],
        cwd=tmp_path,
        env={**PLAIN, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    data = json.loads(done.stdout)
    assert data["hosts"] == 1
    assert [finding for finding in data["findings"] if finding["severity"] == "error"] == []

"""A spare host takes the place of a lost one: soon, with all other ranks as they were, whichever host it is.

`test_recovery_matrix.py` has the same with torch and a process group.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_jobs import FRESH, Site, ended_well, hosts_of, kill_on
from launching import PLAIN, alive, run_here
from waiting import ending, patience, process_state, wait_until

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.timeout(240)]

SLACK = 6.0
"""Seconds that a busy machine may add to a recovery."""


@pytest.fixture(scope="module")
def lab(shared: Path) -> Iterator[Lab]:
    with Lab(5, bind=(shared,)) as lab:
        yield lab


@pytest.fixture
def site(lab: Lab, shared: Path) -> Iterator[Site]:
    site = Site(lab, shared)
    yield site
    site.heal()


@pytest.mark.parametrize(("host", "ranks"), [("h3", "2, 3"), ("h2", "0, 1")], ids=["a host", "the first host"])
def test_a_spare_replaces_a_host_whose_power_was_cut(site: Site, host: str, ranks: str) -> None:
    job = site.run("--spares", "1", FRESH, "-H", "h2:2,h3:2,h4:2")
    before = job.wait_begun(0, 4)
    assert "h4" not in hosts_of(before).values(), "a spare runs no ranks"
    site.lab.power_off(host)
    cut = time.time()
    after = job.wait_begun(1, 4)
    assert hosts_of(after) == {rank: "h4" if at == host else at for rank, at in hosts_of(before).items()}
    assert [after[rank]["group"] for rank in after] == [before[rank]["group"] for rank in after]
    assert job.recovered(1, cut) < 7.5 + patience(SLACK)
    done = job.wait()
    ended_well(done)
    assert f"muster: lost {host}: no message from it for 5 s" in done.err
    assert f"muster: restart 1 of 20: spare h4 replaces {host} (ranks {ranks})" in done.err
    assert after[0]["lost"] == [f"{host}: no message from it for 5 s; it is down or hung, or its network is cut"]


def test_a_killed_agent_costs_less_than_a_second_and_its_host_is_a_spare_again(site: Site) -> None:
    job = site.run("--spares", "1", FRESH, "-H", "h2:2,h3:2,h4:2", attempts=2)
    job.wait_begun(0, 4)
    killed = job.kill("h3", "agent")
    assert hosts_of(job.wait_begun(1, 4))[2] == "h4"
    assert job.recovered(1, killed) < 1.0 + patience(SLACK)
    job.wait_for("muster: h3 is back and is a spare now")
    job.kill("h4", "agent")
    assert hosts_of(job.wait_begun(2, 4))[2] == "h3"
    ended_well(job.wait())


def test_a_killed_zygote_costs_a_spare_and_is_started_again(site: Site) -> None:
    job = site.run("--spares", "1", "-H", "h2:1,h3:1,h4:1", attempts=1)
    job.wait_begun(0, 2)
    job.kill("h3", "zygote")
    assert hosts_of(job.wait_begun(1, 2)) == {0: "h2", 1: "h4"}
    done = job.wait()
    ended_well(done)
    assert "muster: h3: the process that starts its ranks was killed; starting it again" in done.err


def test_a_frozen_host_that_thaws_brings_none_of_its_ranks_back(site: Site) -> None:
    job = site.run("--spares", "1", FRESH, "-H", "h2:1,h3:1,h4:1")
    job.wait_begun(0, 2)
    old = [pid for pid, command in site.lab.processes("h3") if "survive.py" in command]
    assert old, site.lab.processes("h3")
    site.lab.freeze("h3")
    assert hosts_of(job.wait_begun(1, 2)) == {0: "h2", 1: "h4"}
    site.lab.thaw("h3")
    wait_until("the old rank is gone", lambda: all(process_state(pid) in ("", "Z") for pid in old), 20)
    ended_well(job.wait())


def test_two_hosts_lost_at_once_cost_two_spares(site: Site) -> None:
    job = site.run("--spares", "2", FRESH, "-H", "h2:1,h3:1,h4:1,h5:1")
    job.wait_begun(0, 2)
    site.lab.power_off("h2")
    site.lab.power_off("h3")
    assert set(hosts_of(job.wait_begun(1, 2)).values()) == {"h4", "h5"}
    done = job.wait()
    ended_well(done)
    assert re.search(r"muster:   0 .* lost h[23], h[23]\n", done.err), "the table of attempts names both"


def test_a_spare_that_dies_is_reported_and_another_is_used(site: Site) -> None:
    job = site.run("--spares", "2", FRESH, "-H", "h2:1,h3:1,h4:1,h5:1")
    job.wait_begun(0, 2)
    site.lab.power_off("h4")
    job.wait_for("muster: h4 was a spare; 1 spare left")
    assert not job.begun(1)
    job.kill("h3", "agent")
    assert hosts_of(job.wait_begun(1, 2)) == {0: "h2", 1: "h5"}
    ended_well(job.wait())


def test_a_spare_that_is_lost_while_it_takes_over_is_replaced_too(site: Site) -> None:
    # With torch: else h3 could be back before h5 is chosen.
    job = site.run("--spares", "2", "-H", "h2:1,h3:1,h4:1,h5:1")
    job.wait_begun(0, 2)
    site.lab.freeze("h4")
    job.kill("h3", "agent")
    assert hosts_of(job.wait_begun(1, 2)) == {0: "h2", 1: "h5"}
    done = job.wait()
    ended_well(done)
    assert "restart 1 of 20: spare h5 replaces h3" in done.err
    assert "restart 2" not in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "muster stop"])
def test_a_job_that_waits_for_a_host_can_be_stopped(site: Site, number: signal.Signals) -> None:
    job = site.run("--restarts", "3", "--lost-after", "5", FRESH, "-H", "h2:1,h3:1")
    job.wait_begun(0, 2)
    site.lab.power_off("h3")
    job.wait_for(r"muster: waiting up to 5 min for h3 to return \(no spare left\)")
    job.process.send_signal(number)
    done = job.wait(20)
    assert done.code == 128 + number, done.said
    assert not alive(site.lab, ["h2"])


LAUNCH = """\
import os, time
import muster

def work():
    with muster.init() as world:
        print("BEGUN", world.attempt, world.rank, flush=True)
        while world.attempt == 0:
            time.sleep(0.1)
        return world.attempt, os.uname().nodename, world.lost

if __name__ == "__main__":
    print("RESULT", muster.launch(work, hosts="h2:1,h3:1,h4:1", options="--spares 1 --no-check --grace 1"), flush=True)
"""


def test_a_function_is_called_again_on_the_spare_and_knows_what_was_lost(site: Site) -> None:
    (site.shared / "launch_it.py").write_text(LAUNCH)
    log = site.shared / "launch_it.log"
    with log.open("wb") as out:
        argv = [sys.executable, "launch_it.py"]
        env = {**PLAIN, "XDG_STATE_HOME": str(site.shared / "launched")}
        process = site.lab.popen("h1", argv, cwd=str(site.shared), env=env, stdout=out, stderr=out)
    with ending(process):
        wait_until("both ranks", lambda: log.read_text().count("BEGUN 0") == 2, 60, log.read_text)
        kill_on(site.lab, "h3", "agent")
        assert process.wait(patience(60)) == 0, log.read_text()
    said = log.read_text()
    assert "RESULT [(1, 'h2', ('h3: " in said, said
    assert "(1, 'h4', (" in said, said


def test_bad_use_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    for options, sentence in [
        ("--spares 2 -H a,b", "--spares 2 leaves no host for ranks: the job has 2 hosts"),
        ("--spares 1", "--spares 1 leaves no host for ranks: the job has 1 host"),
        ("--min-hosts 3 -H a,b", "--min-hosts 3 is more than the job has: 2 hosts"),
        ("--min-hosts 3 --spares 1 -H a,b,c", "--min-hosts 3 is more than the job has: 2 hosts and 1 spare"),
        ("--rejoin 0 -H a,b", "--rejoin has no effect without --min-hosts"),
        ("--spares 1 --engine mpi -H a:1,b:1", "--engine mpi cannot replace a lost host"),
    ]:
        done = run_here(tmp_path, "--dry-run", "--nproc", "1", *options.split(), "x.py")
        assert done.code == 2, done.said
        assert done.err.startswith(f"error: {sentence}"), done.said
        assert len(done.err.splitlines()) == 3, "the sentence and a hint"

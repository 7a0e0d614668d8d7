"""Without a spare: the job continues on fewer hosts, or waits for the lost one, and grows again when it returns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_jobs import FRESH, Site, ended_well, hosts_of
from waiting import patience

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.timeout(240)]

SLACK = 6.0
"""Seconds that a busy machine may add to a recovery."""


@pytest.fixture(scope="module")
def lab(shared: Path) -> Iterator[Lab]:
    with Lab(4, bind=(shared,)) as lab:
        yield lab


@pytest.fixture
def site(lab: Lab, shared: Path) -> Iterator[Site]:
    site = Site(lab, shared)
    yield site
    site.heal()


@pytest.mark.parametrize(("host", "how"), [("h3", [FRESH]), ("h2", [])], ids=["a host", "the first host"])
def test_the_job_continues_with_fewer_hosts(site: Site, host: str, how: list[str]) -> None:
    job = site.run("--min-hosts", "2", *how, "-H", "h2:2,h3:1,h4:1")
    job.wait_begun(0, 4)
    site.lab.power_off(host)
    cut = time.time()
    left = [name for name in ("h2", "h2", "h3", "h4") if name != host]
    after = job.wait_begun(1, len(left))
    assert list(hosts_of(after).values()) == left
    assert {each["world"] for each in after.values()} == {len(left)}
    assert job.recovered(1, cut) < 7.5 + patience(SLACK)
    done = job.wait()
    ended_well(done)
    assert f"muster: restart 1 of 20: 2 hosts left, world size 4 -> {len(left)} (--min-hosts 2)" in done.err


def test_below_the_minimum_the_job_waits_for_the_host_to_return(site: Site) -> None:
    job = site.run("--restarts", "2", "--lost-after", "5", FRESH, "-H", "h2:1,h3:1")
    job.wait_begun(0, 2)
    site.lab.power_off("h3")
    job.wait_for(r"muster: waiting up to 5 min for h3 to return \(no spare left\)")
    site.lab.reboot("h3")
    assert hosts_of(job.wait_begun(1, 2)) == {0: "h2", 1: "h3"}
    done = job.wait()
    ended_well(done)
    assert "muster: h3 is back\n" in done.err
    assert "muster: restart 1 of 2\n" in done.err


def test_with_rejoin_the_job_grows_when_the_host_has_returned(site: Site) -> None:
    job = site.run("--min-hosts", "1", "--rejoin", "1s", FRESH, "-H", "h2:1,h3:1", attempts=2)
    job.wait_begun(0, 2)
    site.lab.power_off("h3")
    assert hosts_of(job.wait_begun(1, 1)) == {0: "h2"}
    site.lab.reboot("h3")
    assert hosts_of(job.wait_begun(2, 2)) == {0: "h2", 1: "h3"}
    done = job.wait()
    ended_well(done)
    assert "muster: h3 is back and is a spare now" in done.err
    assert "muster: planned restart (2 hosts are ready (--rejoin 1s)): 2 hosts again, world size 1 -> 2" in done.err
    assert "restart 2 of" not in done.err


def test_without_rejoin_a_returned_host_is_a_spare(site: Site) -> None:
    job = site.run("--min-hosts", "1", FRESH, "-H", "h2:1,h3:1,h4:1", attempts=2)
    job.wait_begun(0, 3)
    job.kill("h3", "agent")
    assert hosts_of(job.wait_begun(1, 2)) == {0: "h2", 1: "h4"}
    job.wait_for("muster: h3 is back and is a spare now")
    job.kill("h4", "agent")
    assert hosts_of(job.wait_begun(2, 2)) == {0: "h2", 1: "h3"}
    ended_well(job.wait())


def test_a_host_that_is_down_at_the_start_is_replaced_and_joins_later(site: Site) -> None:
    site.lab.power_off("h3")
    job = site.run("--spares", "1", FRESH, "-H", "h2:1,h3:1,h4:1")
    assert hosts_of(job.wait_begun(0, 2)) == {0: "h2", 1: "h4"}
    assert "muster: starting without h3: spare h4 replaces h3" in job.err
    site.lab.reboot("h3")
    job.wait_for("muster: h3 is back and is a spare now")
    job.kill("h4", "agent")
    assert hosts_of(job.wait_begun(1, 2)) == {0: "h2", 1: "h3"}
    ended_well(job.wait())


def test_too_few_hosts_at_the_start_fail_the_job_at_once(site: Site) -> None:
    job = site.run("--min-hosts", "2", FRESH, "-H", "h2:1,nowhere:1")
    done = job.wait(60)
    assert done.code == 125, done.said
    assert "nowhere: ssh could not resolve this host name" in done.err


def test_code_that_was_sent_reaches_a_host_that_returns(site: Site) -> None:
    job = site.run("--sync", "--min-hosts", "1", "--rejoin", "1s", FRESH, "-H", "h2:1,h3:1", attempts=2)
    job.wait_begun(0, 2)
    site.lab.power_off("h3")
    job.wait_begun(1, 1)
    site.lab.reboot("h3")
    assert hosts_of(job.wait_begun(2, 2)) == {0: "h2", 1: "h3"}
    ended_well(job.wait())

"""What earlier jobs learned about hosts: how it is kept, shown and forgotten."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.api.known_hosts import apply_history
from muster.check.cluster_facts import Wanted
from muster.check.finding import Finding
from muster.check.here import forget_if_passed, known_bad
from muster.engines.engine import Choice
from muster.engines.table import load
from muster.errors import UsageError
from muster.home import state_folder
from muster.hosts import Host
from muster.job import Job
from muster.jobs import host_history
from muster.jobs.host_history import Incident, Kind
from muster.spec import RunSpec

JOB = "20261116-041233-train-3f9a"
A, B = Host(name="a", slots=8), Host(name="b", slots=8)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "muster"


def incident(
    what: str = "GPU 3 fell off the bus", ago: float = 7200, kind: Kind = "hardware", job: str = JOB
) -> Incident:
    return Incident(time=time.time() - ago, kind=kind, what=what, job=job)


def silent(text: str) -> None:
    raise AssertionError(text)


def bad(host: Host) -> str:
    return host_history.read(silent).bad(host, time.time())


def shown(*hosts: Host, **options: object) -> tuple[tuple[Host, ...], tuple[str, ...]]:
    spec = RunSpec(target="train.py", **options)  # type: ignore[arg-type]
    choice, lines = apply_history(spec, Choice(engine=load("ssh"), hosts=hosts))
    return choice.hosts, lines


# --- keeping ------------------------------------------------------------------------------------------------------


def test_an_incident_is_kept_for_the_next_job_in_a_file_of_this_user_alone(state: Path):
    host_history.remember(B, incident())
    assert bad(B) == "GPU 3 fell off the bus 2 h ago (job train-3f9a)"
    assert bad(A) == ""
    assert stat.S_IMODE((state / "hosts.json").stat().st_mode) == 0o600
    assert sorted(os.listdir(state)) == ["hosts.json", "hosts.lock"]


def test_a_host_is_known_as_it_was_typed_whatever_its_number_of_ranks():
    host_history.remember(Host(name="b", user="me", port=2222, slots=4), incident())
    assert bad(Host(name="b", user="me", port=2222)) != ""
    assert bad(Host(name="b")) == ""


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (600, "10 min"), (7200, "2 h"), (86400 * 3, "3 days")])
def test_the_age_of_an_incident_is_shown(seconds: float, text: str):
    host_history.remember(B, incident(ago=seconds))
    assert f"bus {text} ago" in bad(B)


def test_the_newest_incident_is_shown():
    host_history.remember(B, incident())
    host_history.remember(B, incident("the disk of /ckpt was full", 60))
    assert bad(B).startswith("the disk of /ckpt was full 60 s ago")


@pytest.mark.parametrize(("kind", "days"), [("hardware", 30), ("repeated", 30), ("full", 1)])
def test_an_incident_is_forgotten_after_30_days_and_a_full_disk_after_one(kind: Kind, days: int):
    host_history.remember(B, incident(ago=(days - 0.1) * 86400, kind=kind))
    assert bad(B) != ""
    host_history.forget([B])
    host_history.remember(B, incident(ago=(days + 0.1) * 86400, kind=kind))
    assert bad(B) == ""


def test_the_file_stays_small():
    for number in range(30):
        host_history.remember(B, incident(f"incident {number} {'x' * 500}"))
    found = host_history.read(silent).hosts["b"]
    assert len(found) == host_history.MOST_INCIDENTS
    assert found[-1].what.startswith("incident 29")
    assert max(len(one.what) for one in found) == 200


def test_one_loss_is_no_reason_to_avoid_a_host_and_losses_in_two_jobs_are():
    host_history.remember(B, incident("no answer for 5.0 s", kind="lost"))
    assert bad(B) == ""
    host_history.remember(B, incident("no answer for 5.0 s", kind="lost"))  # the same job again
    assert bad(B) == ""
    host_history.remember(B, incident("the connection closed", 60, kind="lost", job="20261116-051233-eval-aaaa"))
    assert bad(B) == "lost in 2 jobs, the last time 60 s ago (job eval-aaaa)"


def test_several_jobs_can_write_at_once():
    code = (
        "import sys, time\nfrom muster.hosts import Host\nfrom muster.jobs.host_history import Incident, remember\n"
        "for n in range(10):\n"
        "    remember(Host(name=sys.argv[1]), Incident(time=time.time(), kind='hardware', what=f'w{n}', job='j'))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, f"host{number}"]) for number in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0] * 3
    found = host_history.read(silent).hosts
    assert {key: len(incidents) for key, incidents in found.items()} == {f"host{number}": 10 for number in range(3)}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"hosts": 3}', '{"hosts": {"b": [{"time": "x"}]}}', "\x00\xff", "[" * 100_000]
)
def test_a_damaged_file_is_ignored_with_one_warning_and_replaced_by_the_next_incident(text: str):
    state_folder().mkdir(parents=True)
    host_history.path().write_text(text)
    said: list[str] = []
    assert host_history.read(said.append).hosts == {}
    assert len(said) == 1
    assert "could not read the history of hosts" in said[0]
    host_history.remember(B, incident())
    assert bad(B) != ""


def test_text_in_the_file_cannot_move_the_cursor():
    host_history.remember(B, incident("\x1b[2Jgone\n\nmuster: job ended"))
    assert "\x1b" not in bad(B)


def test_a_file_that_is_a_pipe_does_not_block():
    state_folder().mkdir(parents=True)
    os.mkfifo(host_history.path())
    said: list[str] = []
    assert host_history.read(said.append).hosts == {}
    assert len(said) == 1


# --- the next start -----------------------------------------------------------------------------------------------


def test_the_next_start_shows_one_line_for_each_bad_host():
    host_history.remember(B, incident())
    hosts, lines = shown(A, B)
    assert hosts == (A, B)
    assert lines == ("b: GPU 3 fell off the bus 2 h ago (job train-3f9a); use --avoid-bad to leave it out",)


def test_hosts_without_a_history_show_nothing():
    assert shown(A, B) == ((A, B), ())
    assert shown(A, B, avoid_bad=True) == ((A, B), ())


def test_avoid_bad_leaves_bad_hosts_out_and_reports_which_and_why():
    host_history.remember(B, incident())
    hosts, lines = shown(A, B, avoid_bad=True)
    assert hosts == (A,)
    assert lines == ("b is left out (--avoid-bad): GPU 3 fell off the bus 2 h ago (job train-3f9a)",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "--avoid-bad leaves no host: it leaves out a (the disk"),
        ({"spares": 1}, "--avoid-bad leaves no host, but --spares 1 needs 2: it"),
        ({"min_hosts": 2}, "--avoid-bad leaves no host, but --min-hosts 2 needs 2: it"),
    ],
)
def test_avoid_bad_reports_in_one_sentence_that_too_few_hosts_are_left(options: dict[str, int], said: str):
    host_history.remember(A, incident("the disk of / was full"))
    host_history.remember(B, incident())
    with pytest.raises(UsageError) as error:
        shown(A, B, avoid_bad=True, **options)
    assert error.value.message.startswith(said)
    assert "muster check --deep -H a,b" in str(error.value.hint)


def test_many_bad_hosts_do_not_fill_the_screen():
    hosts = [Host(name=f"n{number}") for number in range(12)]
    for host in hosts:
        host_history.remember(host, incident())
    lines = shown(*hosts)[1]
    assert len(lines) == 9
    assert lines[-1] == "and 4 more bad hosts: n8, n9, n10, n11"


def test_the_hosts_of_a_new_lab_have_no_history():
    host_history.remember(B, incident())
    assert shown(A, B, lab=2, avoid_bad=True) == ((A, B), ())


# --- forgetting ---------------------------------------------------------------------------------------------------


def checked(*findings: Finding) -> tuple[list[Finding], list[str]]:
    host_history.remember(B, incident())
    job = Job(id=JOB, spec=RunSpec(target=""), hosts=(A, B), carried={})
    wanted = Wanted(known_bad=known_bad(job, silent))
    own = Finding("warning", ("b",), "GPU 3 fell off the bus", "", check="earlier_jobs")
    return forget_if_passed(job, wanted, [own, *findings])


def test_a_host_that_passes_the_deep_check_is_forgotten_and_this_is_reported():
    unrelated = Finding("warning", ("b",), "/dev/shm is only 64 MB", "", check="shm")
    found, lines = checked(unrelated)
    assert found == [unrelated]
    assert lines == ["b passed, so its history is forgotten: GPU 3 fell off the bus 2 h ago (job train-3f9a)"]
    assert bad(B) == ""


@pytest.mark.parametrize(
    "finding",
    [
        Finding("error", ("b",), "nvidia-smi fails", "", check="gpus"),
        Finding("warning", ("b",), "GPU 3 has had 4 uncorrectable memory errors", "", check="gpus"),
        Finding("warning", ("a", "b"), "the link is slow", "", check="deep"),
        Finding("error", (), "the ranks of the deep check failed", "", check="deep"),
    ],
)
def test_a_host_that_does_not_pass_is_not_forgotten(finding: Finding):
    found, lines = checked(finding)
    assert (len(found), lines) == (2, [])
    assert bad(B) != ""


def test_forgetting_one_host_keeps_the_others():
    host_history.remember(A, incident())
    host_history.remember(B, incident())
    host_history.forget([B])
    assert bad(A) != ""
    assert bad(B) == ""
    assert list(json.loads(host_history.path().read_text())["hosts"]) == ["a"]

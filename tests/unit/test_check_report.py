"""The report of `muster check` as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from healthy import CHECKS, altered, broken, cluster, findings

from muster.check.cluster_facts import Cluster, Wanted
from muster.check.finding import Finding, Fix, worst_first
from muster.check.findings_report import Report, as_data, facts, render


def report(hosts: Cluster) -> Report:
    return Report(
        findings=findings(hosts),
        facts=facts(CHECKS, hosts),
        measured={},
        cluster=hosts,
        hosts=len(hosts.machines),
        seconds=1.25,
    )


def test_a_report_shows_differences_findings_and_fixes():
    hosts = broken(cluster(3), "b", lambda answers: answers.update(shm={"size": 64 << 20, "free": 64 << 20}))
    text = render(report(hosts))
    assert "differences\n  /dev/shm  32 GB (a, c)   64 MB (b)\n" in text
    assert "same on all hosts: Python 3.11.7; " in text
    assert (
        "warning: b: /dev/shm is only 64 MB\n"
        "  Symptom: RuntimeError: Caught RuntimeError in DataLoader worker process 0, "
        "or: killed by signal: Bus error\n"
        "  Fix:     ssh b 'sudo mount -o remount,size=32g /dev/shm'\n"
    ) in text
    assert text.endswith("3 hosts checked in 1.2 s: 1 warning\n")


def test_healthy_hosts_get_a_short_report():
    text = render(report(cluster(2)))
    assert text.startswith("same on all hosts: ")
    assert text.endswith("2 hosts checked in 1.2 s: no problems found\n")
    assert "differences" not in text


def test_the_report_for_programs_has_the_command_as_it_is_typed():
    hosts = broken(cluster(3), "b", lambda answers: answers.update(shm={"size": 64 << 20, "free": 64 << 20}))
    data = json.loads(json.dumps(as_data(report(hosts))))
    (found,) = data["findings"]
    assert found["type"] == "ssh b 'sudo mount -o remount,size=32g /dev/shm'"
    assert found["fix"]["on"] == "b"
    assert (found["row"], found["severity"], found["check"]) == (33, "warning", "shm")
    assert data["facts"]["/dev/shm"] == {"a": "32 GB", "b": "64 MB", "c": "32 GB"}


def test_a_check_without_a_result_is_reported():
    hosts = altered(cluster(2), "b", broken={"fabric": "OSError: no"}, hung={"limits": 3.0})
    text = render(report(hosts))
    assert "unknown: b: check `fabric` failed (OSError: no)" in text
    assert "unknown: b: check `limits` timed out after 3 s" in text


def test_a_command_for_a_host_without_a_login_says_where_to_type_it():
    hosts = altered(cluster(2), "b", login=None)
    assert hosts.line(Fix(command="reboot", on="b")) == "on b: reboot"
    assert altered(hosts, "b", login=()).line(Fix(command="reboot", on="b")) == "reboot"
    assert hosts.line(Fix(command="unset A")) == "unset A"


def test_a_finding_of_several_hosts_is_printed_once():
    hosts = cluster(3)
    for name in "bc":
        hosts = broken(hosts, name, lambda answers: answers.update(shm={"size": 64 << 20, "free": 0}))
    text = render(report(hosts))
    assert text.count("/dev/shm is only") == 1
    assert "warning: b, c: /dev/shm is only 64 MB" in text
    assert "for h in b c; do ssh $h 'sudo mount -o remount,size=32g /dev/shm'; done" in text


def test_more_options_for_the_container_keep_those_that_were_given():
    for argv in (["--container-args", "-v /a:/a"], ["--container-args=-v /a:/a"]):
        wanted = Wanted(argv=("muster", "check", "-H", "a", *argv))
        assert wanted.with_container_args("--shm-size=8g") == (
            "muster check --container-args '-v /a:/a --shm-size=8g' -H a"
        )


def test_the_worst_comes_first():
    one = Finding(severity="note", hosts=("a",), what="", symptom="")
    found = [one, replace(one, severity="error"), replace(one, severity="warning")]
    assert [finding.severity for finding in worst_first(found)] == ["error", "warning", "note"]


def test_one_problem_on_two_hosts_is_counted_once():
    hosts = cluster(3)
    for name in ("b", "c"):
        hosts = broken(hosts, name, lambda answers: answers.update(shm={"size": 64 << 20, "free": 64 << 20}))
    text = render(report(hosts))
    assert "warning: b, c: /dev/shm is only 64 MB\n" in text
    assert text.endswith("3 hosts checked in 1.2 s: 1 warning\n")


def test_the_only_host_is_named_unless_it_is_this_machine():
    assert render(report(altered(cluster(1), "a", login=("ssh", "a")))).startswith("a: Python ")
    assert render(report(altered(cluster(1), "a", login=()))).startswith("this host: Python ")

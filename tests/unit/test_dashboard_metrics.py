"""The metrics of a job: a text that Prometheus understands, whatever the job is called."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_job import BEGIN, ended, job

from muster.dashboard.prometheus import metrics
from muster.jobs.state import AttemptState, HostState, JobState

Sample = tuple[str, tuple[tuple[str, str], ...]]

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')


def parse(text: str) -> dict[Sample, float]:
    """Read the text format as Prometheus does; an AssertionError where it would refuse it."""
    found: dict[Sample, float] = {}
    kinds: dict[str, str] = {}
    closed: set[str] = set()
    now = ""
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("# "):
            _, word, name, rest = line.split(" ", 3)
            if word == "TYPE":
                assert rest in ("gauge", "counter")
                assert name not in kinds, f"{name} is typed twice"
                kinds[name] = rest
            continue
        name = NAME.match(line)
        assert name, line
        assert name[0] in kinds, f"{name[0]} has no type"
        if name[0] != now:  # all samples of a name stand together
            closed.add(now)
            now = name[0]
        assert name[0] not in closed, f"{name[0]} comes back"
        assert name[0].endswith("_total") == (kinds[name[0]] == "counter"), name[0]
        labels, value = re.fullmatch(r"\{(.*)\} (\S+)", line[name.end() :]).groups()  # pyright: ignore
        key = (name[0], tuple(sorted(parse_labels(labels).items())))
        assert key not in found, f"{key} comes twice"
        found[key] = float(value)
    return found


def parse_labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    while text:
        match = LABEL.match(text)
        assert match, text
        assert match[1] not in labels
        labels[match[1]] = re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], match[2])
        text = text[match.end() :]
    return labels


def value(state: JobState, name: str, /, **labels: str) -> float | None:
    found = parse(metrics(state))
    return found.get((f"muster_{name}", tuple(sorted({"job": state.id, **labels}.items()))))


def test_a_rank_has_its_state_steps_and_waiting_time():
    state = job()
    assert value(state, "rank_state", rank="5", host="gpu02", state="failed") == 1
    assert value(state, "rank_state", rank="5", host="gpu02", state="running") == 0
    assert value(state, "rank_steps_total", rank="2", host="gpu01") == 1020
    assert value(state, "rank_waiting_ratio", rank="2", host="gpu01") == 0.04
    assert value(state, "rank_exit_code", rank="5", host="gpu02") == 1


def test_what_is_not_known_has_no_line():
    assert value(job(), "rank_exit_code", rank="2", host="gpu01") is None
    assert "exit_code" not in metrics(job(failed=None))


def test_hosts_and_gpus_come_in_base_units():
    state = job()
    assert value(state, "host_memory_total_bytes", host="gpu02") == 512e9
    assert value(state, "gpu_clock_hertz", host="gpu01", gpu="1") == 1.98e9
    assert value(state, "gpu_throttled", host="gpu01", gpu="0") == 1


def test_a_time_keeps_its_digits():
    state = replace(job(), begin=BEGIN + 0.125)
    assert value(state, "job_begin_timestamp_seconds") == BEGIN + 0.125


def test_the_end_of_the_job_is_reported():
    assert value(ended(job()), "job_exit_code") == 1
    assert value(ended(job()), "job_phase", phase="ended") == 1
    assert value(ended(job()), "job_reports_total", kind="hang") == 1


def test_spares_losses_and_recoveries_are_counted():
    attempts = (
        AttemptState(number=0, begin=BEGIN, world_size=8, hosts=("gpu01", "gpu02")),
        AttemptState(number=1, begin=BEGIN, world_size=8, hosts=("gpu01", "gpu03"), recovery=5.6),
        AttemptState(number=2, begin=BEGIN, world_size=8, hosts=("gpu01", "gpu03")),
    )
    hosts = (
        *job().hosts,
        HostState(name="gpu03", state="up", role="spare"),
        HostState(name="gpu04", state="lost", role="spare"),
    )
    state = replace(job(), hosts=hosts, attempts=attempts, attempt=2, host_losses=3)
    assert [value(state, "hosts", state=name) for name in ("up", "lost", "draining")] == [3, 1, 0]
    assert value(state, "spares") == 1
    assert value(state, "attempts_total") == 3
    assert value(state, "host_losses_total") == 3
    assert value(state, "recovery_seconds") == 5.6
    assert value(job(), "recovery_seconds") is None


def test_a_job_without_hosts_or_ranks_is_no_trouble():
    assert value(replace(job(), hosts=(), ranks=(), world_size=0), "job_ranks") == 0


@given(st.text())
@pytest.mark.parametrize("field", ["command", "host"])
def test_any_name_survives_as_a_label(field: str, name: str):
    state = replace(job(ranks=1), hosts=(HostState(name=name),), **{field: name})
    readable = name.encode("utf-8", "replace").decode()
    label = {"command": "command", "host": "controller_host"}[field]
    found = [dict(labels) for (key, labels) in parse(metrics(state)) if key == "muster_job_info"]
    assert found[0][label] == readable
    assert value(state, "host_up", host=readable) == 0


def test_the_documentation_lists_every_name_and_no_other():
    attempt = AttemptState(number=1, begin=BEGIN, world_size=8, hosts=("gpu01",), recovery=5.6)
    emitted = {name for name, _ in parse(metrics(ended(replace(job(), hosts=(full_host(),), attempts=(attempt,)))))}
    text = (Path(__file__).parents[2] / "docs/dashboard.md").read_text(encoding="utf-8")
    table = "".join(line for line in text.splitlines() if line.startswith("| `muster_"))
    assert set(re.findall(r"`(muster_\w+)`", table)) == emitted


def full_host() -> HostState:
    """A host of which everything is known."""
    return replace(job().hosts[0], disk_wait=0.25)

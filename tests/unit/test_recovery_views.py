"""What users see of spare, lost and draining hosts, and of a job's attempts: ps, show, top, logs and the screen."""

from __future__ import annotations

import io
import json
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kept_jobs import keep, state_of
from sample_status import make_status

from muster.cli import main
from muster.controller.summary import show_attempts
from muster.jobs.attempts_text import attempt_rows, short_reason, took
from muster.jobs.hosts_text import places, where
from muster.jobs.job_folders import KeptJob, read_job
from muster.jobs.ps_text import reason, status
from muster.jobs.show_text import show
from muster.jobs.state import AttemptState, HostChangeState, HostState, JobState, RankState, from_data
from muster.jobs.top_view import frame
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.plan import make_plan

NOW = time.time()
LOSS = "lost b: no message for 5.0 s"
HOSTS = (
    HostState(name="a", state="up", role="ranks", cpus=4),
    HostState(name="b", state="lost", why="no message for 5.0 s"),
    HostState(name="c", state="up", role="ranks"),
    HostState(name="d", state="draining", role="ranks", why="spot notice", deadline=NOW + 80.4),
    HostState(name="e", state="up", role="spare"),
)
ATTEMPTS = (
    AttemptState(
        number=0, begin=NOW - 90, world_size=6, hosts=("a", "b", "c"), slots=(2, 2, 2), lost_at=NOW - 60, lost_to=LOSS
    ),
    AttemptState(
        number=1,
        begin=NOW - 59,
        world_size=6,
        hosts=("a", "d", "c"),
        slots=(2, 2, 2),
        swaps={"d": "b"},
        recovery=5.62,
    ),
)


@pytest.fixture(autouse=True)
def state_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_STATE_HOME", folder)
        yield Path(folder)


def state(**fields: Any) -> JobState:
    known: dict[str, Any] = {"hosts": HOSTS, "attempts": ATTEMPTS, "attempt": 1, "world_size": 6, "engine": "ssh"}
    return state_of(**{**known, "begin": NOW - 100, "now": NOW, **fields})


def job(**fields: Any) -> KeptJob:
    return read_job(keep(state(**fields)))


def test_ps_counts_spares_and_names_hosts_that_are_lost_or_draining(capsys: pytest.CaptureFixture[str]):
    assert places(state()) == "6@a,d,c + 1 spare, 1 lost (b), 1 draining (d)"
    assert places(state(hosts=HOSTS[:3])) == "6@a,d,c, 1 lost (b)"
    assert places(state(phase="ended", exit_code=0)) == "6@a,d,c"
    assert (
        places(state(attempts=(), world_size=0, phase="connecting")) == "4 hosts + 1 spare, 1 lost (b), 1 draining (d)"
    )
    job()
    assert main(["ps"]) == 0
    assert "  6@a,d,c + 1 spare, 1 lost (b), 1 draining (d)  train.py" in capsys.readouterr().out


def test_of_many_lost_hosts_ps_shows_only_the_number():
    many = tuple(HostState(name=f"gpu{number:02}", state="lost") for number in range(30))
    assert places(state(hosts=many)) == "6@a,d,c, 30 lost"


def test_a_job_between_two_attempts_is_recovering():
    between = {"phase": "stopping", "attempts": ATTEMPTS[:1]}
    assert status(job(**between), NOW) == "recovering"
    assert status(job(**{**between, "phase": "preparing"}), NOW) == "recovering"
    assert status(job(**between, stopped_by="Ctrl-C"), NOW) == "stopping"
    assert status(job(phase="stopping"), NOW) == "stopping"


def test_show_says_what_a_job_that_recovers_waits_for():
    lost = (RankState(rank=0, host="b", local_rank=0, state="lost", step_rate=0.0),)
    waiting = job(phase="preparing", attempts=ATTEMPTS[:1], ranks=lost, sentence="waiting for b to return")
    assert "recovering: waiting for b to return" in show(waiting, NOW, None, [])
    assert reason(waiting) == "waiting for b to return"
    assert "recovering" in show(job(phase="preparing", attempts=ATTEMPTS[:1], ranks=lost), NOW, None, [])


def test_show_lists_hosts_with_their_use_and_why_they_are_missing_and_every_attempt():
    lines = show(job(), NOW, None, [])
    assert "  Where: 6 ranks on 3 hosts + 1 spare, 1 lost (b), 1 draining (d) (ssh): a, d, c; spare: e" in lines
    at = lines.index("Hosts:")
    assert [line.split() for line in lines[at + 1 : at + 7]] == [
        ["HOST", "USE", "STATE", "WHY"],
        ["a", "ranks", "up"],
        ["b", "-", "lost", "no", "message", "for", "5.0", "s"],
        ["c", "ranks", "up"],
        ["d", "ranks", "draining", "80", "s", "left,", "spot", "notice"],
        ["e", "spare", "up"],
    ]
    at = lines.index("Attempts:")
    first, second = lines[at + 2 : at + 4]
    assert lines[at + 1].split() == ["ATTEMPT", "BEGAN", "RAN", "RANKS", "HOSTS", "RECOVERY", "ENDED", "BY"]
    assert first.split()[:1] + first.split()[2:] == f"0 30 s 6 a,b,c 5.6 s, d replaced b {LOSS}".split()
    assert second.split()[:1] + second.split()[2:] == ["1", "59", "s", "6", "a,d,c", "-", "still", "running"]
    timeline = lines[lines.index("Timeline:") :]
    assert any(line.endswith(f"attempt 0 ended: {LOSS}") for line in timeline)
    assert any(line.endswith("6 ranks on 3 hosts, d replaced b, recovery took 5.6 s") for line in timeline)


def test_the_timeline_has_hosts_that_were_lost_and_returned_but_no_loss_twice():
    changes = tuple(
        HostChangeState(time=NOW - 60 + at, host=host, state=phase, why=why)
        for at, (host, phase, why) in enumerate(
            [
                ("b", "lost", "power"),
                ("e", "lost", "its cable was cut"),
                ("e", "up", ""),
                ("d", "draining", "spot notice"),
            ]
        )
    )
    attempts = (replace(ATTEMPTS[0], lost_to="host b is lost: power"), ATTEMPTS[1])
    lines = show(job(attempts=attempts, host_changes=changes), NOW, None, [])
    timeline = [line[12:] for line in lines[lines.index("Timeline:") + 1 :] if line.startswith("  ")]
    assert timeline[1] == "attempt 0 ended: host b is lost: power"
    assert timeline[3:] == ["e is lost: its cable was cut", "e is back", "d is draining: spot notice"]
    shown = KeptJob(id="x", folder=Path("/none"), state=state(host_changes=changes), life="alive")
    assert frame(shown, width=80, height=40, now=NOW, color=False)[-1].endswith(" d is draining: spot notice")


def test_a_requeued_job_shows_when_it_was_started_first_and_again():
    lines = show(job(begin=NOW - 59.5), NOW, None, [])
    day = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(rf"  When: started {day}, again {day}, has been running for 60s", lines[3]), lines[3]
    timeline = [line[12:] for line in lines[lines.index("Timeline:") + 1 :] if line.startswith("  ")]
    assert timeline[:3] == ["attempt 0 began: 6 ranks on 3 hosts", f"attempt 0 ended: {LOSS}", "started again"]


def test_show_has_no_such_tables_for_a_job_that_lost_nothing():
    plain = show(job(hosts=(HOSTS[0], HOSTS[2]), attempts=ATTEMPTS[:1]), NOW, None, [])
    assert "Hosts:" not in plain
    assert "Attempts:" not in plain


def test_of_a_job_that_has_ended_only_lost_and_bad_hosts_are_listed():
    bad = HostState(name="f", state="bad", why="Xid 79")
    lines = show(job(hosts=(*HOSTS, bad), phase="ended", exit_code=0), NOW, None, [])
    at = lines.index("Hosts:")
    assert [line.split()[0] for line in lines[at + 2 : at + 4]] == ["b", "f"]
    assert lines[at + 4] == ""


def test_of_many_hosts_only_those_in_trouble_are_listed():
    many = (*HOSTS, *(HostState(name=f"gpu{number}", state="up", role="ranks") for number in range(100)))
    lines = show(job(hosts=many), NOW, None, [])
    at = lines.index("Hosts:")
    assert [line.split()[0] for line in lines[at + 2 : at + 6]] == ["b", "d", "e", "102"]
    assert lines[at + 5].strip() == "102 more hosts"


def test_of_many_attempts_the_newest_are_listed():
    many = [AttemptState(number=number, begin=NOW, world_size=2, hosts=("a",)) for number in range(50, 100)]
    rows = attempt_rows(many, now=NOW, last="exit code 0")
    assert (len(rows), rows[1], rows[2][0], rows[-1][0]) == (22, ("80 earlier attempts",), "80", "99")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (0.0214, "0.021 s"), (0.618, "0.62 s"), (5.62, "5.6 s"), (42.4, "42 s"), (200, "3 min 20 s")],
)
def test_durations_have_two_digits(seconds: float, text: str):
    assert took(seconds) == text
    assert took(7500) == "2 h 5 min"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("host b is lost: no message from it for 5 s; it is down or hung", "lost b: no message from it for 5 s"),
        ("rank 1 on b failed first, 3.1 s after the start: KeyError", "rank 1 on b failed first: KeyError"),
        ("out of memory; lower the batch size\nmore", "out of memory; lower the batch size"),
    ],
)
def test_what_ended_an_attempt_is_short(reason: str, text: str):
    assert short_reason(reason) == text


def test_top_shows_what_hosts_are_for_and_the_last_recovery():
    shown = KeptJob(id="x", folder=Path("/none"), state=state(), life="alive")
    lines = frame(shown, width=100, height=40, now=NOW, color=False)
    assert lines[1].startswith("6 ranks on 3 hosts + 1 spare, 1 lost (b), 1 draining (d) (ssh)")
    assert lines[3].split() == ["HOST", "USE", "STATE", "CPU", "WHY"]
    assert lines[5].split() == ["b", "-", "lost", "no", "message", "for", "5.0", "s"]
    assert lines[8].split() == ["e", "spare", "up"]
    assert lines[-1].endswith(f"attempt 0 ended: {LOSS}; d replaced b, recovery took 5.6 s")
    assert any("\x1b[35mdraining" in line for line in frame(shown, width=100, height=40, now=NOW, color=True))


def test_the_state_of_an_older_muster_is_shown_as_before():
    old = json.loads(json.dumps(state().as_data()))
    del old["attempts"], old["host_losses"], old["host_changes"]
    for host in old["hosts"]:
        del host["role"], host["why"], host["deadline"]
        host["state"] = "up"
    read = from_data(old)
    assert (read.attempts, read.hosts[0].role) == ((), "")
    assert places(read) == "6@a,b,c,d,e"
    assert where(read) == "6 ranks on 5 hosts"


def test_no_name_of_a_host_or_a_spare_can_move_the_cursor():
    evil = "\x1b[2J"
    attempts = [vars(attempt) for attempt in ATTEMPTS]
    attempts[1] = {**attempts[1], "swaps": {f"{evil}d": f"{evil}b"}, "hosts": [evil], "lost_to": f"{evil}x"}
    hosts = [{**vars(host), "name": f"{evil}{host.name}", "why": f"{evil}why"} for host in HOSTS]
    data = json.loads(json.dumps({**state().as_data(), "attempts": attempts, "hosts": hosts}, default=vars))
    read = from_data(data)
    shown = KeptJob(id="x", folder=Path("/none"), state=read, life="alive")
    text = [*show(shown, NOW, None, []), *frame(shown, width=100, height=40, now=NOW, color=False), places(read)]
    assert "\x1b" not in "".join(text)


@pytest.mark.parametrize(
    "damage",
    [
        {"attempts": [{"number": 0}]},
        {"attempts": [{**vars(ATTEMPTS[0]), "slots": ["x"]}]},
        {"attempts": {"0": 1}},
        {"host_losses": "many"},
        {"host_changes": [{"host": "a", "state": "up"}]},
        {"hosts": [{"name": "a", "state": "asleep"}]},
        {"hosts": [{"name": "a", "role": "king"}]},
        {"hosts": [{"name": "a", "deadline": "soon"}]},
    ],
)
def test_a_damaged_state_is_refused(damage: dict[str, Any]):
    with pytest.raises(ValueError, match=r"invalid value|missing"):
        from_data(json.loads(json.dumps({**state().as_data(), **damage})))


def write_log(folder: Path, attempt: int, rank: int, text: str) -> None:
    logs = LogFiles(lambda sentence: None)
    logs.write(folder / f"attempt-{attempt}" / f"rank-{rank}.log", text, f"{rank} 1")
    logs.close()


def test_logs_of_an_earlier_attempt_have_its_ranks_and_its_hosts(capfd: pytest.CaptureFixture[str]):
    shrunk = (ATTEMPTS[0], AttemptState(number=1, begin=NOW, world_size=4, hosts=("a", "c"), slots=(2, 2)))
    ranks = tuple(RankState(rank=rank, host="ac"[rank // 2], local_rank=rank % 2) for rank in range(4))
    folder = job(attempts=shrunk, world_size=4, ranks=ranks, phase="ended", exit_code=0).folder
    write_log(folder, 0, 3, "before\n")
    write_log(folder, 1, 3, "after\n")
    assert main(["logs", "--attempt", "0"]) == 0
    assert capfd.readouterr().out == "[b 3] before\n"
    assert main(["logs"]) == 0
    assert capfd.readouterr().out == "[c 3] after\n"
    assert main(["logs", "--attempt", "0", "--rank", "5"]) == 0
    assert main(["logs", "--rank", "5"]) == 2
    assert "--rank 5: job" in capfd.readouterr().err
    assert main(["logs", "--attempt", "0", "--rank", "6"]) == 2
    assert "--rank 6: attempt 0 of job 20261115-101500-train-3f9a has ranks 0 to 5" in capfd.readouterr().err


def summary(attempts: int, *, quiet: bool = False) -> list[str]:
    job_status, _ = make_status()
    for number in range(1, attempts):
        job_status.attempt_lost(LOSS)
        plan = make_plan("x", [job_status.job.hosts[0]], threads=[0], restarts=0, user_env={})
        job_status.attempt_begins(number, plan, {})
    out = io.StringIO()
    screen = Screen(streams={1: out, 2: out}, quiet=quiet)
    show_attempts(screen, job_status, "exit code 0")
    screen.close()
    return out.getvalue().splitlines()


def test_a_job_with_several_attempts_ends_with_a_table_of_them():
    title, heads, first, second = summary(2)
    assert title == "muster: 2 attempts:"
    assert heads.split() == ["muster:", "ATTEMPT", "RAN", "RANKS", "RECOVERY", "ENDED", "BY"]
    assert first.endswith(LOSS)
    assert second.endswith("exit code 0")
    assert summary(1) == summary(3, quiet=True) == []

"""What `muster show`, `ps` and `logs` say about a job that failed, hangs or is slow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kept_jobs import keep, state_of

from muster.cli import main
from muster.jobs.job_folders import KeptJob, read_job
from muster.jobs.ps_text import reason, status
from muster.jobs.show_text import show, verdict
from muster.jobs.state import Failure, RankState, Report
from muster.output.log_files import LogFiles
from muster.spec import RunSpec

A, B = "20261114-080000-train-aaaa", "20261115-080000-train-bbbb"

FAILURE = Failure(
    attempt=0,
    time=1000.0,
    sentence="rank 1 on h1 failed first, 3.1 s after the start: KeyError: 'lr' (train.py:8)",
    detail="Traceback (most recent call last):\n  File \"train.py\", line 8, in <module>\nKeyError: 'lr'",
    lines=("The key is missing", "Fix: set it"),
    rank=1,
    host="h1",
    place="train.py:8",
)
HANG = Report(
    kind="hang",
    time=1000.0,
    sentence="rank 0 waits in all_reduce number 4 (train.py:8); rank 1 on h1 has been at data.py:7 for 31 s",
    detail="rank 1 on h1, most recent call first:\n  File data.py",
    ranks=(1,),
    stacks={rank: f"frame of rank {rank}" for rank in range(8)},
)
SLOW = Report(kind="straggler", time=1000.0, sentence="rank 1 on h1 is slowing the job down", ranks=(1,))


@pytest.fixture(autouse=True)
def state_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_STATE_HOME", folder)
        yield Path(folder)


def job(job_id: str = A, **fields: Any) -> KeptJob:
    return read_job(keep(state_of(job_id, **fields)))


def failed(job_id: str = A, **fields: Any) -> KeptJob:
    return job(job_id, phase="ended", exit_code=1, sentence="short", failures=(FAILURE,), **fields)


def test_a_hung_job_and_a_slow_one_are_called_that_with_their_reason():
    now = time.time()
    hung = job(hung_since=now - 31.2, reports=(SLOW, HANG), slow=(1,))
    assert (status(hung, now), reason(hung)) == ("hung 31 s", HANG.sentence.removesuffix(" for 31 s"))
    assert status(hung, now + 3600) == "hung 61 min"
    slow = job(slow=(1,), reports=(HANG, SLOW))
    assert (status(slow, now), reason(slow)) == ("slow", SLOW.sentence)
    well = job(reports=(HANG, SLOW))
    assert (status(well, now), reason(well)) == ("running", "")
    elsewhere = job(hung_since=now - 5, host="gpu01", controller_birth="x")
    assert status(elsewhere, now) == "hung 5 s on gpu01"


def test_the_reason_of_a_failure_is_one_line_and_a_stopped_job_has_none():
    assert reason(failed()) == FAILURE.sentence
    assert reason(job(phase="ended", exit_code=125, sentence="h2: no route\nmore")) == "h2: no route"
    assert reason(job(phase="ended", exit_code=143, stopped_by="muster stop", sentence="x")) == ""
    assert reason(job(phase="ended", exit_code=0)) == ""


def test_ps_prints_the_reason_below_the_job(capsys: pytest.CaptureFixture[str]):
    failed()
    job(B, phase="ended", exit_code=0)
    assert main(["ps"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["JOB", B, A]
    assert lines[3:] == [f"    {FAILURE.sentence}"]


def test_ps_lists_running_jobs_first_and_the_footer_last(capfd: pytest.CaptureFixture[str]):
    (job(A).folder / "socket").touch()
    for number in range(11):
        job(f"20261115-0800{number:02d}-train-bbbb", phase="ended", exit_code=0)
    for argv in ([], ["--all"]):
        assert main(["ps", *argv]) == 0
        assert capfd.readouterr().out.splitlines()[1].startswith(f"{A}  running ")
    program = "import sys; from muster.cli import main; sys.exit(main(['ps']))"
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    assert done.stdout.splitlines()[0].startswith("JOB ")
    assert done.stdout.splitlines()[-1] == "1 older job not listed: `muster ps --all`"


def test_the_placeholder_of_a_local_rank_is_not_shown():
    command = RunSpec(target="train.py", args=("--local-rank=${local_rank}", "--lr", "0.1")).command
    assert command == "train.py --lr 0.1"


def test_stop_all_without_dashes_says_what_to_type(capfd: pytest.CaptureFixture[str]):
    failed()
    assert main(["stop", "all"]) == 2
    assert "hint: use `muster stop --all` to stop all jobs" in capfd.readouterr().err


def test_the_verdict_on_a_failed_job_has_everything_the_screen_showed():
    lines = verdict(failed(), time.time())
    assert lines[0] == FAILURE.sentence
    assert lines[1:4] == ["  " + line for line in FAILURE.detail.splitlines()]
    assert lines[4:] == ["The key is missing", "Fix: set it", "failed after 100s, exit code 1"]


def test_failures_before_a_restart_are_shown_with_their_attempts():
    both = (FAILURE, Failure(attempt=1, time=1001.0, sentence="host h1 is lost"))
    lines = verdict(job(phase="ended", exit_code=1, attempt=1, failures=both), time.time())
    assert [line for line in lines if line.startswith("attempt")] == [
        f"attempt 0: {FAILURE.sentence}",
        "attempt 1: host h1 is lost",
    ]


def test_a_failure_of_several_lines_is_shown_whole():
    several = Failure(
        attempt=0, time=1000.0, sentence="2 hosts failed:\nh1: no route\nh2: no route", lines=("hint: a\nb",)
    )
    lines = verdict(job(phase="ended", exit_code=125, failures=(several,)), time.time())
    assert lines[:-1] == ["2 hosts failed:", "  h1: no route", "  h2: no route", "hint: a", "  b"]


def test_show_has_stack_traces_a_timeline_and_the_logs():
    shown = job(hung_since=time.time() - 31, reports=(HANG,), phases={"connected": 0.25, "imported": 1.5})
    text = "\n".join(show(shown, time.time(), None, ["stacks-1.txt"]))
    assert re.search(r"hang at \d\d:\d\d:\d\d: rank 0 waits in all_reduce number 4", text)
    assert text.count("rank 1 on h1, most recent call first:") == 1
    assert re.findall(r"Stack trace of rank (\d)", text) == ["0", "2", "3", "4"]  # rank 1 is above
    assert "3 more stack traces not shown" in text
    assert re.search(r"^  \d\d:\d\d:\d\d  imported \(\+1.5 s\)$", text, re.MULTILINE)
    assert text.endswith("Stack traces: stacks-1.txt in that directory")
    assert f"Logs: {shown.folder}" in text


def test_the_ranks_a_hang_names_come_first_where_it_has_no_detail_and_equal_stack_traces_are_shown_once():
    hang = replace(HANG, detail="", stacks={0: "wait", 1: "load", 2: "wait", 3: "wait"})
    text = "\n".join(show(job(reports=(hang,)), time.time(), None, []))
    assert re.findall(r"^Stack trace of (.*) at \d\d:", text, re.MULTILINE) == ["rank 1 on h1", "ranks 0, 2, 3"]
    silent = "\n".join(show(job(reports=(replace(hang, stacks={1: ""}),)), time.time(), None, []))
    assert re.search(r"^Stack trace of rank 1 on h1 at .*:\n  none: the process did not answer$", silent, re.MULTILINE)


def ranks_at(*places: str, moved: float | None, **fields: Any) -> tuple[RankState, ...]:
    return tuple(
        RankState(rank=rank, host="h1", local_rank=rank, place=place, moved=moved, collectives=7, **fields)
        for rank, place in enumerate(places)
    )


def test_show_says_where_each_rank_of_a_running_job_is_and_for_how_long_it_made_no_progress():
    now = time.time()
    places = ("train.py:20 in <module>", "train.py:17 in load_batch", *["train.py:20 in <module>"] * 2)
    ranks = [
        replace(rank, state="running" if rank.rank == 1 else "waiting") for rank in ranks_at(*places, moved=now - 18.3)
    ]
    shown = show(job(ranks=tuple(ranks), now=now), now, None, [])
    at = shown.index("ranks 0, 2, 3 are waiting in a collective at train.py:20, no progress for 18 s")
    assert shown[at + 1] == "rank 1 is at train.py:17 in load_batch, no progress for 18 s"
    moving = ranks_at("train.py:9 in step", "train.py:9 in step", moved=now - 1, state="running")
    assert "ranks 0, 1 are at train.py:9 in step" in show(job(ranks=moving, now=now), now, None, [])
    unknown = replace(moving[0], collectives=0, moved=now - 60)
    assert "rank 0 is at train.py:9 in step" in show(job(ranks=(unknown,), now=now), now, None, [])
    many = ranks_at(*[f"train.py:{line} in step" for line in range(20)], moved=now, state="running")
    assert "12 more ranks elsewhere" in show(job(ranks=many, now=now), now, None, [])
    for over in ({"phase": "ended", "exit_code": 0}, {"hung_since": now - 31, "reports": (HANG,)}):
        assert not any("train.py:9 in step" in line for line in show(job(ranks=moving, **over), now, None, []))


def test_show_has_the_stack_traces_that_were_saved_before_a_job_was_stopped():
    saved = Report(
        kind="stacks", time=1000.0, sentence="stack traces of 2 ranks: ~/x/stacks-1.txt", stacks={0: "a", 1: "b"}
    )
    stopped = job(phase="ended", exit_code=130, stopped_by="Ctrl-C", reports=(saved,))
    text = "\n".join(show(stopped, time.time(), None, ["stacks-1.txt"]))
    assert re.findall(r"Stack trace of rank (\d) on h1", text) == ["0", "1"]
    assert re.search(r"^  \d\d:\d\d:\d\d  stack traces of 2 ranks saved$", text, re.MULTILINE)
    assert "Stack trace of" not in "\n".join(show(job(reports=(saved,)), time.time(), None, []))


def test_stack_traces_need_a_job_that_runs_and_has_ranks(capfd: pytest.CaptureFixture[str]):
    assert main(["show", "--stacks"]) == 2
    assert "no job is running" in capfd.readouterr().err
    failed(B)
    assert main(["show", "--stacks", "last"]) == 2
    assert "failed with exit code 1" in capfd.readouterr().err
    job(A, phase="preparing", world_size=0, ranks=())
    assert main(["show", "--stacks", "aaaa"]) == 2
    assert "has no ranks to take stack traces of (preparing)" in capfd.readouterr().err


def test_show_takes_the_newest_job_and_exits_0(capsys: pytest.CaptureFixture[str]):
    failed(B)
    job(A, phase="ended", exit_code=0)
    assert main(["show"]) == 0
    assert capsys.readouterr().out.startswith(f"{B}: failed 1\n")
    assert main(["show", "aaaa"]) == 0
    assert "done after 100s, exit code 0" in capsys.readouterr().out
    assert main(["show", "nothing"]) == 2


def write_logs(folder: Path, pieces: list[tuple[int, str]]) -> None:
    logs = LogFiles(lambda sentence: None)
    for rank, text in pieces:
        logs.write(folder / "attempt-0" / f"rank-{rank}.log", text, f"{rank} 1")
    logs.close()


LINES = [(rank, f"step {step}\n") for step in range(5) for rank in range(2)]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-n", "2"], ["[h1 0] step 4", "[h1 1] step 4"]),
        (["-n", "1", "--rank", "0"], ["step 4"]),
        (["-n", "2", "--rank", "0,1"], ["[h1 0] step 4", "[h1 1] step 4"]),
        (["-n", "1", "--rank", "0-0"], ["step 4"]),
        (["-n", "0"], []),
        (["--grep", "step [13]", "--rank", "1"], ["step 1", "step 3"]),
        (["--grep", "nothing"], []),
        (["--since", "1h", "--grep", "4$"], ["[h1 0] step 4", "[h1 1] step 4"]),
        (["--since", "2020-01-01", "-n", "1"], ["[h1 1] step 4"]),
        (["--since", "2999-01-01 12:00"], []),
    ],
)
def test_logs_are_filtered(argv: list[str], expected: list[str], capfd: pytest.CaptureFixture[str]):
    write_logs(failed().folder, LINES)
    assert main(["logs", *argv]) == 0
    assert capfd.readouterr().out.splitlines() == expected


def test_logs_end_with_the_verdict_on_stderr(capfd: pytest.CaptureFixture[str]):
    write_logs(failed().folder, LINES)
    assert main(["logs", "--rank", "0"]) == 0
    said = capfd.readouterr()
    assert said.out == "".join(f"step {step}\n" for step in range(5))
    assert said.err == f"muster: {FAILURE.sentence}\nmuster: `muster show train` prints more\n"
    assert main(["logs", "--grep", "step 1"]) == 0
    assert capfd.readouterr().err == ""
    assert main(["logs"]) == 0
    said = capfd.readouterr()
    assert said.err.startswith(f"muster: {FAILURE.sentence}\n  Traceback (most recent call last):\n")
    assert said.err.endswith("muster: failed after 100s, exit code 1\nmuster: `muster show train` prints more\n")


def test_timestamps_stand_before_each_line(capfd: pytest.CaptureFixture[str]):
    write_logs(failed().folder, LINES)
    assert main(["logs", "-t"]) == 0
    lines = capfd.readouterr().out.splitlines()
    day = time.strftime("%Y-%m-%d")
    assert len(lines) == 10
    assert all(re.fullmatch(rf"{day} \d\d:\d\d:\d\d\.\d{{3}} \[h1 [01]\] step \d", line) for line in lines)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["--since", "yesterday"],
            "--since: must be a duration such as 5m or a time such as 14:30 or '2026-11-16 14:30', got `yesterday`",
        ),
        (["--since", "25:00"], "got `25:00`"),
        (["--since", ""], "--since: must not be empty"),
        (["--grep", "("], "--grep: invalid regular expression `(`"),
        (["-n", "-1"], "-n"),
        (["--rank", "1-"], "--rank: must be ranks such as 0 or 0,4-7, got `1-`"),
        (["--rank", "0,7"], "error: --rank 7: job 20261114-080000-train-aaaa has ranks 0 to 1"),
        (["-n", "x"], "-n: must be a whole number"),
    ],
)
def test_a_wrong_filter_is_refused_in_one_sentence(argv: list[str], said: str, capfd: pytest.CaptureFixture[str]):
    failed()
    assert main(["logs", *argv]) == 2
    assert said in capfd.readouterr().err


def test_without_a_job_logs_show_the_running_one_or_else_the_newest(capfd: pytest.CaptureFixture[str]):
    write_logs(failed(B).folder, [(0, "newest\n")])
    assert main(["logs"]) == 0
    assert capfd.readouterr().out == "[h1 0] newest\n"
    write_logs(job(A).folder, [(0, "running\n")])
    (read_job(keep(state_of(A))).folder / "socket").touch()
    assert main(["logs"]) == 0
    assert capfd.readouterr().out == "[h1 0] running\n"


def test_stop_never_guesses_among_several(capfd: pytest.CaptureFixture[str]):
    assert main(["stop"]) == 2
    assert "no job is running" in capfd.readouterr().err
    for job_id in (A, B):
        (keep(state_of(job_id, controller=os.getppid())) / "socket").touch()
        keep(state_of(job_id))
    assert main(["stop"]) == 2
    assert f"2 jobs are running: {B}, {A}" in capfd.readouterr().err
    assert main(["stop", "--all", A]) == 2
    assert "--all and JOB exclude each other" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("sentence", "command"),
    [
        ("requeueing Slurm job 12 (1 of 3)", "`scancel 12`"),
        ("lost b; requeueing PBS job 7.pbs (2 of 3)", "`qdel 7.pbs`"),
        ("", "scancel (Slurm) or qdel (PBS)"),
    ],
    ids=["Slurm", "PBS", "unknown"],
)
def test_stop_of_a_requeued_job_says_how_to_cancel_it(sentence: str, command: str, capfd: pytest.CaptureFixture[str]):
    job(A, phase="ended", exit_code=0, stopped_by="requeue", sentence=sentence)
    assert main(["stop", "aaaa"]) == 2
    said = (
        f"error: job {A} is in the queue of its scheduler again, which will start it\n\nhint: cancel it with {command}"
    )
    assert capfd.readouterr().err.startswith(said)

"""Jobs in the background, as a user has them: started, listed, followed, watched, stopped, and left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from launching import MUSTER, PLAIN, Done, run_here, run_in
from terminal import OnTerminal
from waiting import ending, patience, wait_until

from muster.cli.detach import kills_user_processes, removes_shared_memory
from muster.jobs.job_folders import fresh, job_folders, read_job
from muster.jobs.ps_text import status
from muster.jobs.state import JobState
from muster.lab import Lab

pytestmark = pytest.mark.timeout(180)

LOOP = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    time.sleep(0.1)
    while os.path.exists("hold"):
        time.sleep(0.02)
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""
FAST = ("--no-zygote", "--no-check")
FOR_EVER = ("loop.py", "100000")


def as_data(state: JobState | None) -> dict[str, Any]:
    return state.as_data() if state is not None else {"phase": "unknown"}


class User:
    """One who has a folder with a script, and jobs of her own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        (folder / "loop.py").write_text(LOOP)
        self.started = ExitStack()
        self.hold = folder / "hold"
        """While it is there, the ranks of loop.py go no further than the line they are at."""

    @property
    def env(self) -> dict[str, str]:
        return {**PLAIN, "XDG_STATE_HOME": str(self.state)}

    def muster(self, command: str, *argv: str, timeout: float = 60, **env: str) -> Done:
        return run_here(self.folder, *argv, command=command, timeout=timeout, state=self.state, **env)

    def detach(self, *argv: str, nproc: int = 2) -> str:
        """Start a job in the background; its id."""
        done = self.muster("run", "--detach", *FAST, "--nproc", str(nproc), *(argv or FOR_EVER))
        assert done.code == 0, done.said
        return done.out.strip()

    def jobs(self) -> dict[str, dict[str, Any]]:
        """What `muster ps` would show of each job, without starting it each time."""
        found = [fresh(read_job(folder)) for folder in job_folders()]
        return {job.id: {**as_data(job.state), "status": status(job, time.time())} for job in found}

    def lines(self, job_id: str) -> str:
        """What all ranks have written so far."""
        return "".join(path.read_text() for path in (self.state / "muster" / "jobs" / job_id).glob("*/rank-*.log"))

    def job(self, job_id: str) -> dict[str, Any]:
        return self.jobs()[job_id]

    def path_with_ssh(self, script: str) -> str:
        """A PATH on which a script stands in for ssh: to a slow host, or to one that does not answer."""
        ssh = self.folder / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(f"#!/bin/sh\n{script}\n")
        ssh.chmod(0o755)
        return f"{ssh.parent}:{PLAIN['PATH']}"

    def terminal(self, *argv: str, **env: str) -> OnTerminal:
        """A program at a terminal; it ends with the test."""
        return self.started.enter_context(OnTerminal(argv, self.folder, {**self.env, **env}))

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        """A program whose output is read from pipes; it ends with the test."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, cwd=self.folder, env=self.env, bufsize=0, stdout=pipe, stderr=pipe)
        return self.started.enter_context(ending(process))


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    user = User(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(user.state))
    with user.started:
        yield user
    for job_id, job in user.jobs().items():
        if job["phase"] != "ended" and job["status"] != "controller died":
            user.muster("stop", "--now", job_id)


TWICE_LOST = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for number in range(attempt + 2):
    dist.all_reduce(torch.ones(1))
print("attempt", attempt, flush=True)
if attempt < 2 and dist.get_rank() == 1:
    raise ValueError(f"number {attempt}")
dist.barrier()
"""


def test_a_job_that_recovered_twice_lists_its_attempts_on_the_screen_in_show_and_as_json(user: User):
    (user.folder / "twice_lost.py").write_text(TWICE_LOST)
    done = user.muster("run", "--restarts", "5", "--grace", "1", "--nproc", "2", "twice_lost.py", timeout=150)
    assert done.code == 0, done.said
    shown = user.muster("show").out
    for said, label, begin, hosts in ((done.err, "muster: ", "", ""), (shown, "", r"[\d:]+  +", r"\S+  +")):
        row = rf"^{label}" + r"  {}  +" + begin + r"[\d.]+ s  +2  +" + hosts + "{}  +{}$"
        for number in (0, 1):
            why = rf"rank 1 on \S+ failed first: ValueError: number {number} \(twice_lost.py:\d+\)"
            assert re.search(row.format(number, r"[\d.]+ s", why), said, re.MULTILINE), said
        assert re.search(row.format(2, "-", "exit code 0"), said, re.MULTILINE), said
    (job,) = json.loads(user.muster("ps", "--json").out)
    assert [attempt["number"] for attempt in job["attempts"]] == [0, 1, 2]
    recoveries = [attempt["recovery"] for attempt in job["attempts"]]
    assert recoveries[0] is None
    assert all(0 < recovery < 60 for recovery in recoveries[1:])
    for attempt in (0, 1, 2):
        said = user.muster("logs", "--attempt", str(attempt), "--grep", "^attempt").out
        assert re.findall(r"attempt (\d)", said) == [str(attempt)] * 2


def test_a_detached_job_is_listed_followed_and_stopped(user: User) -> None:
    user.hold.touch()
    done = user.muster("run", "--detach", *FAST, "--nproc", "2", *FOR_EVER)
    assert done.code == 0, done.said
    job_id = done.out.strip()
    assert re.fullmatch(r"\d{8}-\d{6}-loop-[0-9a-f]{4}", job_id)
    assert "Follow it: `muster attach loop`" in done.err

    row = user.muster("ps").out.splitlines()[1]
    assert re.fullmatch(rf"{job_id}  running  \d+s  +2@\S+ +loop.py 100000", row)
    (known,) = json.loads(user.muster("ps", "--json").out)
    assert (known["id"], known["status"], known["world_size"]) == (job_id, "running", 2)

    wait_until("lines of both ranks", lambda: user.lines(job_id).count("line 0\n") == 2, 30)
    user.hold.unlink()  # whichever rank came first, its line 3 comes after this
    wait_until("more lines", lambda: user.lines(job_id).count("line 3\n") == 2, 30)
    merged = user.muster("logs", "loop.py").out.splitlines()
    assert all(re.fullmatch(r"\[\S+ [01]\] line \d+", line) for line in merged)
    places = {line.partition(" ")[2]: at for at, line in enumerate(merged)}
    assert max(places["0] line 0"], places["1] line 0"]) < min(places["0] line 3"], places["1] line 3"])
    assert user.muster("logs", job_id[-4:], "--rank", "1").out.startswith("line 0\nline 1\n")

    stopped = user.muster("stop", job_id)
    assert stopped.code == 0, stopped.said
    assert stopped.err.endswith(f"job {job_id} was stopped by muster stop; no process of it is left\n")
    job = user.job(job_id)
    assert (job["status"], job["exit_code"], job["sentence"][:22]) == ("stopped", 143, "stopped by muster stop")
    assert [rank["state"] for rank in job["ranks"]] == ["canceled", "canceled"]
    again = user.muster("stop", job_id)
    assert (again.code, "; nothing to stop" in again.err) == (0, True)
    screen = (user.state / "muster" / "jobs" / job_id / "screen.log").read_text()
    assert "line 0\n" in screen
    assert screen.endswith("s\n")
    assert "stopped by muster stop" in screen.splitlines()[-1]


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["missing.py"], 2, "error: script missing.py not found"),
        (
            ["-H", "no-such-host.invalid", "loop.py", "1"],
            125,
            "error: no-such-host.invalid: ssh could not resolve this host name",
        ),
        (
            ["--nproc", "2", "--only-rank", "7", "loop.py", "1"],
            2,
            "error: --only-rank matches no rank: the job has ranks 0 to 1",
        ),
        (["--slurm-args", "-N2", "loop.py", "1"], 2, "error: --detach: an allocation from --slurm-args would end"),
    ],
)
def test_what_fails_before_the_ranks_start_is_reported_by_the_command_itself(
    user: User, argv: list[str], code: int, said: str
) -> None:
    done = user.muster("run", "--detach", *FAST, *argv)
    assert (done.code, done.out) == (code, ""), done.said
    assert said in done.err


@pytest.mark.parametrize("way", ["Ctrl-C", "muster stop"])
def test_a_job_can_be_ended_before_its_ranks_start(user: User, way: str) -> None:
    path = user.path_with_ssh("exec sleep 60")  # a host that does not answer
    argv = ("--detach", "--controller", "local", *FAST, "-H", "far", "loop.py", "1")
    terminal = user.terminal(MUSTER, "run", *argv, PATH=path)
    terminal.wait_for("connecting to far")
    (job,) = user.jobs().values()
    assert (job["status"], job["hosts"][0]["state"]) == ("waiting for hosts", "connecting")
    if way == "Ctrl-C":
        terminal.type("\x03")
    else:
        assert user.muster("stop", "last").code == 0
    assert terminal.wait() == (130 if way == "Ctrl-C" else 143)
    assert user.job(job["id"])["status"] == "stopped"


def test_a_machine_that_removes_shared_memory_at_logout_is_known():
    default, yes, no = "[Login]\n#RemoveIPC=no\n", "RemoveIPC = Yes\n", "[Login]\nRemoveIPC=no"
    assert [removes_shared_memory(texts) for texts in ([], [default], [default, no], [no, yes])] == [1, 1, 0, 1]


def test_a_machine_that_ends_what_its_users_leave_behind_is_known():
    default, yes, no = "[Login]\n#KillUserProcesses=yes\n", "KillUserProcesses = Yes\n", "[Login]\nKillUserProcesses=no"
    assert [kills_user_processes(texts) for texts in ([], [default], [default, yes], [yes, no])] == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("moment", "controller"), [("connecting to far", "local"), ("is running in the background", "far")]
)
def test_a_detached_job_survives_the_end_of_its_session(user: User, moment: str, controller: str) -> None:
    path = user.path_with_ssh('sleep 1; for last; do :; done; exec sh -c "$last"')
    with OnTerminal(["/bin/sh"], user.folder, {**user.env, "PS1": "$ ", "PATH": path}) as shell:
        options = f"--detach --controller {controller} --no-zygote --no-check -H far:1"
        shell.type(f"{MUSTER} run {options} loop.py 100000\n")
        shell.wait_for(moment)
        shell.process.kill()  # the leader of the session: the kernel hangs the terminal up
    ((job_id, job),) = user.jobs().items()
    assert os.getsid(job["controller"]) == job["controller"]
    wait_until("the ranks", lambda: "line 0" in user.lines(job_id), 30)
    before = user.lines(job_id).count("\n")
    wait_until("more lines", lambda: user.lines(job_id).count("\n") > before + 3, 30)
    assert user.job(job_id)["status"] == "running"


def test_a_controller_that_was_killed_is_shown_as_that(user: User) -> None:
    job_id = user.detach()
    follower = user.start(MUSTER, "logs", "-f", job_id)
    assert follower.stdout is not None
    assert b"line 0" in follower.stdout.readline()
    os.kill(user.job(job_id)["controller"], signal.SIGKILL)
    wait_until("ps", lambda: user.job(job_id)["status"] == "controller died", 30)
    stop = user.muster("stop", job_id)
    assert stop.code == 0
    assert "ended when its controller was killed; its agents stop all ranks" in stop.err
    attach = user.muster("attach", job_id)
    assert (attach.code, "its controller was killed" in attach.err) == (2, True)
    _, words = follower.communicate(timeout=patience(40))
    assert (follower.returncode, words) == (
        0,
        b"muster: the controller was killed; its agents stop all ranks within 10 s\n",
    )
    folder = user.state / "muster" / "jobs" / job_id
    assert not (folder / "socket").exists()


def test_attach_shows_the_screen_and_ctrl_c_leaves_the_job_alone(user: User) -> None:
    (user.folder / "wait.py").write_text(
        "import os, time\nprint('early', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
        "print('late', flush=True)\ntime.sleep(1000)\n"
    )
    job_id = user.detach("wait.py")
    wait_until("both ranks", lambda: user.lines(job_id).count("early") == 2, 30)
    terminal = user.terminal(MUSTER, "attach", job_id)
    terminal.wait_for(re.escape("1]\x1b[0m early\n"))  # shown before we attached, and with the colors of a terminal
    (user.folder / "go").touch()
    terminal.wait_for(re.escape("1]\x1b[0m late\n"))
    terminal.type("\x03")
    assert terminal.wait() == 0
    assert "detached. The job keeps running; stop it with `muster stop wait`" in terminal.screen
    assert user.job(job_id)["status"] == "running"


def test_attach_ends_with_the_job_and_with_its_exit_code(user: User) -> None:
    user.hold.touch()
    job_id = user.detach("loop.py", "3", "3")
    attach = user.start(MUSTER, "attach", job_id)
    assert attach.stdout is not None
    assert b"line 0" in attach.stdout.readline()
    user.hold.unlink()
    out, words = attach.communicate(timeout=patience(60))
    assert attach.returncode == 3, words
    assert b"line 2" in out
    assert b"exit code 3; logs in" in words
    assert user.job(job_id)["status"] == "failed 3"
    refused = user.muster("attach", job_id)
    assert (refused.code, "failed with exit code 3: " in refused.err) == (2, True)


def test_a_job_in_the_foreground_is_listed_and_stopped_like_any_other(user: User) -> None:
    run = user.start(MUSTER, "run", *FAST, *FOR_EVER)
    wait_until("its script", lambda: [job for job in user.jobs() if "line 0" in user.lines(job)], 30)
    stop = user.muster("stop", "last", "--now", "--stacks")
    assert stop.code == 0, stop.said
    _, words = run.communicate(timeout=patience(40))
    assert run.returncode == 143
    assert b"stopped by muster stop" in words
    (job,) = user.jobs()
    assert "stacks-1.txt" in stop.err
    assert "loop.py" in (user.state / "muster" / "jobs" / job / "stacks-1.txt").read_text()


def test_logs_follow_a_job_over_a_restart_to_its_end_and_keep_every_byte(user: User) -> None:
    (user.folder / "twice.py").write_text(
        "import os, sys, time\n"
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "os.write(1, b'\\xff attempt ' + attempt.encode() + b'\\n')\n"
        "os.write(2, b'10%\\r20%\\r')\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
        "os.write(2, b'100%\\nno newline')\n"
        "sys.exit(1 - int(attempt))\n"
    )
    job_id = user.detach("--restarts", "1", "twice.py", nproc=1)
    follow = user.start(MUSTER, "logs", "-f", job_id)
    assert follow.stdout is not None
    first_line = follow.stdout.readline()
    (user.folder / "go").touch()
    out, words = follow.communicate(timeout=patience(60))
    labelled = [re.sub(rb"^\[\S+ 0\] ", b"", line) for line in (first_line + out).splitlines()]
    whole = [b"10%", b"20%", b"100%", b"no newline"]
    assert labelled == [b"\xff attempt 0", *whole, b"\xff attempt 1", *whole]
    assert words.startswith(b"muster: attempt 1\nmuster: attempt 0: rank 0 on ")
    assert b"\nmuster: done after " in words
    assert user.job(job_id)["status"] == "done"
    first = user.muster("logs", job_id, "--attempt", "0", "--rank", "0").out
    assert first == "\udcff attempt 0\n10%\r20%\r100%\nno newline"
    assert "20%" not in user.muster("logs", job_id).out  # a bar that is long done
    for argv, said in (
        (["--attempt", "5"], "has attempts 0, 1"),
        (["--rank", "1"], "has only rank 0"),
    ):
        wrong = user.muster("logs", job_id, *argv)
        assert (wrong.code, said in wrong.err) == (2, True), wrong.said


def test_top_shows_a_job_live_and_gives_the_terminal_back(user: User) -> None:
    job_id = user.detach(nproc=3)
    once = user.muster("top", "--once", COLUMNS="80")
    assert once.code == 0, once.said
    assert once.out.startswith(f"{job_id}  running, ")
    assert re.search(r"^RANK +HOST +STATE", once.out, re.MULTILINE)
    assert re.search(r"^ +2 +\S+ +running", once.out, re.MULTILINE)
    assert max(map(len, once.out.splitlines())) <= 80
    for leave in ("q", "\x03", signal.SIGTERM):
        terminal = user.terminal(MUSTER, "top")
        before = termios.tcgetattr(terminal.fd)
        terminal.wait_for("3 ranks on 1 host")
        assert terminal.screen.startswith("\x1b[?1049h\x1b[?25l")
        if isinstance(leave, str):
            terminal.type(leave)
        else:
            terminal.process.send_signal(leave)
        assert terminal.wait() == (0 if isinstance(leave, str) else 143)
        assert terminal.screen.endswith("\x1b[?25h\x1b[?1049l")
        assert termios.tcgetattr(terminal.fd)[:4] == before[:4]
    plain = user.terminal(MUSTER, "top", NO_COLOR="1")
    plain.wait_for("3 ranks on 1 host")
    assert not re.search(r"\x1b\[\d+m", plain.screen)
    user.muster("stop", "--now", job_id)
    assert plain.wait() == 0
    assert f"job {job_id} was stopped by muster stop" in plain.screen


def test_two_running_jobs_have_to_be_named(user: User) -> None:
    first, second = user.detach(nproc=1), user.detach(nproc=1)
    done = user.muster("top")
    assert done.code == 2
    assert f"2 jobs are running: {second}, {first}" in done.err
    wrong = user.muster("stop", "nothing-like-it")
    assert (wrong.code, wrong.err.startswith("error: job `nothing-like-it` not found")) == (2, True)


def test_jobs_have_names_and_all_are_stopped_at_once(user: User) -> None:
    first, second = user.detach("--name", "baseline", *FOR_EVER), user.detach("--name", "lr-01", *FOR_EVER, nproc=1)
    assert re.fullmatch(r"\d{8}-\d{6}-lr-01-[0-9a-f]{4}", second)
    assert user.muster("top", "--once", "baseline").out.startswith(f"{first}  running, ")
    assert f"{second}: running\n" in user.muster("show", "lr-01").out
    refused = user.muster("stop")
    assert (refused.code, f"2 jobs are running: {second}, {first}" in refused.err) == (2, True), refused.said
    stopped = user.muster("stop", "--all")
    assert stopped.code == 0, stopped.said
    assert stopped.err.count("was stopped by muster stop; no process of it is left") == 2
    assert [job["status"] for job in user.jobs().values()] == ["stopped", "stopped"]
    assert user.muster("stop", "--all").err == "muster: no job is running\n"


@pytest.mark.torch
def test_a_hang_shows_in_ps_and_its_report_stays(user: User) -> None:
    (user.folder / "hangs.py").write_text(
        "import time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1: time.sleep(1000)\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    done = user.muster("run", "--detach", "--no-check", "--nproc", "2", "--hang-after", "2", "hangs.py", timeout=100)
    job_id = done.out.strip()
    wait_until("the hang", lambda: user.job(job_id)["status"].startswith("hung "), 60)
    row, why = user.muster("ps").out.splitlines()[1:]
    assert re.match(rf"{job_id} +hung \d+ s ", row)
    assert "hangs.py:3" in why
    assert not re.search(r" for \d+ s", why)
    assert "hangs.py:3" in user.muster("logs").err
    stopped = user.muster("stop")
    assert stopped.code == 0, stopped.said
    screen = (user.state / "muster" / "jobs" / job_id / "screen.log").read_text()
    assert "muster: stopping all ranks for `muster stop` (up to " in screen
    shown = user.muster("show")
    assert shown.code == 0, shown.said
    assert re.search(r"^hang at .*hangs.py:3", shown.out, re.MULTILINE)
    assert len(re.findall(r"^  rank 1 on .*, most recent call first:", shown.out, re.MULTILINE)) == 1
    assert re.findall(r"^Stack trace of rank (\d) on ", shown.out, re.MULTILINE) == ["0"]
    assert "stopped by muster stop" in shown.out


@pytest.mark.torch
def test_a_job_without_progress_shows_where_its_ranks_are_before_it_counts_as_hung(user: User) -> None:
    (user.folder / "waits.py").write_text(
        "import time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(1))\n"
        "def load_batch():\n"
        "    time.sleep(1000)\n"
        "if dist.get_rank() == 1: load_batch()\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    done = user.muster("run", "--detach", "--no-check", "--nproc", "2", "--hang-after", "600", "waits.py", timeout=100)
    assert done.code == 0, done.said
    job_id = done.out.strip()

    def standing() -> str:
        text = user.muster("show").out
        return text if text.count(", no progress for ") == 2 else ""

    shown = wait_until("no progress", standing, every=0.5)
    assert re.search(r"^rank 0 is waiting in a collective at waits.py:7, no progress for \d+ s$", shown, re.MULTILINE)
    assert re.search(r"^rank 1 is at waits.py:5 in load_batch, no progress for \d+ s$", shown, re.MULTILINE)

    taken = user.muster("show", "--stacks")
    assert taken.code == 0, taken.said
    traces = re.split(r"^Stack trace of rank (\d) on .*\n", taken.out, flags=re.MULTILINE)
    assert [traces[1], 'waits.py", line 7' in traces[2]] == ["0", True]
    assert [traces[3], 'waits.py", line 5, in load_batch' in traces[4]] == ["1", True]
    assert taken.out.endswith("The job keeps running\n")
    assert user.job(job_id)["status"] == "running"

    os.kill(user.job(job_id)["controller"], signal.SIGINT)
    wait_until("the end", lambda: user.job(job_id)["phase"] == "ended", 60)
    shown = user.muster("show").out
    assert "in load_batch" in shown.partition("Stack trace of rank 1 on ")[2]
    assert shown.count("stack traces of 2 ranks saved\n") == 2


def test_the_verdict_on_a_failed_job_is_printed_again(user: User) -> None:
    (user.folder / "fails.py").write_text("print('begun', flush=True)\n{}['lr']\n")
    failed = user.muster("run", *FAST, "--nproc", "1", "fails.py")
    assert failed.code == 1, failed.said
    verdict = failed.err.partition("muster: rank 0")[2].partition("muster: failed")[0]
    assert "KeyError: 'lr'" in verdict
    logs, shown = user.muster("logs"), user.muster("show")
    assert (logs.code, shown.code) == (0, 0)
    assert verdict in logs.err
    assert "KeyError: 'lr'" in shown.out
    assert "ended, exit code 1" in shown.out
    assert "    rank 0 on " in user.muster("ps").out


def test_a_short_grace_overrides_a_long_one(user: User) -> None:
    (user.folder / "deaf.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(100)\n"
    )
    job_id = user.detach("--grace", "60", "deaf.py", nproc=1)
    wait_until("the rank", lambda: "deaf" in user.lines(job_id), 30)
    waiting = user.start(MUSTER, "stop", job_id)
    wait_until("the stop", lambda: user.job(job_id)["phase"] == "stopping", 30)
    begin = time.monotonic()
    assert user.muster("stop", job_id, "--grace", "0.5").code == 0
    assert time.monotonic() - begin < 40  # it would be 60
    assert waiting.wait(patience(30)) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a pid namespace")
def test_a_job_in_a_pid_namespace_of_its_own_is_listed_and_stopped_from_outside(user: User) -> None:
    inside = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    job = user.start(*inside, MUSTER, "run", *FAST, "--nproc", "1", *FOR_EVER)
    wait_until("a running job", lambda: [job["status"] for job in user.jobs().values()] == ["running"], 40)
    (job_id,) = user.jobs()
    assert re.search(rf"^{job_id} +running ", user.muster("ps").out, re.MULTILINE)
    stop = user.muster("stop", job_id)
    assert (stop.code, "was stopped by muster stop; no process of it is left" in stop.err) == (0, True), stop.said
    assert job.wait(30) == 143


@pytest.mark.lab
def test_a_job_of_another_machine_with_the_same_home_is_shown_as_that(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    # Too long for a socket, which would answer on h2: the hosts of a lab are one machine.
    state = str(tmp_path / ("long" * 30))
    with Lab(2, bind=(tmp_path,)) as lab:

        def on(host: str, command: str, *argv: str) -> Done:
            return run_in(lab, host, tmp_path, *argv, command=command, XDG_STATE_HOME=state)

        started = on("h1", "run", "--detach", *FAST, "--nproc", "1", *FOR_EVER)
        assert started.code == 0, started.said
        job_id = started.out.strip()
        assert re.search(rf"^{job_id} +running on h1 ", on("h2", "ps").out, re.MULTILINE)
        wait_until("the rank", lambda: "line 0" in on("h2", "logs", "last").out, patience(40), every=0.5)
        assert f"{job_id}  running on h1, " in on("h2", "top", "--once").out
        refused = on("h2", "stop", "last")
        assert refused.code == 125
        assert f"error: job {job_id} runs on h1, but this is h2" in refused.err
        assert "`ssh -t h1 muster stop loop`" in refused.err
        assert on("h1", "stop", "last").code == 0
        assert re.search(rf"^{job_id} +stopped ", on("h2", "ps").out, re.MULTILINE)


@pytest.mark.lab
def test_the_hosts_of_a_lab_live_as_long_as_the_detached_job(user: User) -> None:
    done = user.muster("run", "--detach", "--lab", "2", *FAST, "--nproc", "1", *FOR_EVER, timeout=100)
    assert done.code == 0, done.said
    job = user.job(done.out.strip())
    assert [host["name"] for host in job["hosts"]] == ["h1", "h2"]
    assert user.muster("stop", "last").code == 0
    assert user.job(job["id"])["status"] == "stopped"

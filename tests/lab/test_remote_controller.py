"""`muster run --detach` from a laptop: the controller runs on a host, and the laptop may be closed.

h1 is the laptop; the job runs on h2 and h3, and its controller on h2. The laptop has a state directory of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import MUSTER, PLAIN, Done
from terminal import CTRL_C, OnTerminal
from waiting import end, patience, wait_until

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

LOOP = """
import os, socket, sys, time
for number in range(int(sys.argv[1])):
    print("line", number, socket.gethostname(), os.environ.get("GIVEN"), os.environ.get("WANDB_NAME"), flush=True)
    time.sleep(0.1)
    while os.path.exists(f"{sys.argv[2]}.hold"):
        time.sleep(0.02)
sys.exit(int(sys.argv[3]))
"""
FAST = ("--no-zygote", "--no-check")


class Laptop:
    """A user on h1."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.state = folder / "laptop"
        self.hold = folder / "job.hold"
        (folder / "loop.py").write_text(LOOP)

    def start(self, command: str, *argv: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
        env = {**PLAIN, "XDG_STATE_HOME": str(self.state), "WANDB_NAME": "carried", **env}
        pipe = subprocess.PIPE
        where = str(cwd or self.folder)
        argv = (MUSTER, command, *argv)
        return self.lab.popen(
            "h1", argv, cwd=where, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )

    def muster(self, command: str, *argv: str, limit: float = 60, cwd: Path | None = None, **env: str) -> Done:
        process = self.start(command, *argv, cwd=cwd, **env)
        try:
            out, err = process.communicate(timeout=limit)
        finally:
            end(process)
        return Done(code=process.returncode, out=out, err=err, state=self.state)

    def detach(self, lines: int, code: int = 0, *options: str) -> str:
        done = self.muster("run", "--detach", *FAST, *options, "-H", "h2:1,h3:1", *self.loop(lines, code))
        assert done.code == 0, done.said
        assert "Its controller is on h2, so this machine may sleep or disconnect" in done.err
        return done.out.strip()

    def loop(self, lines: int, code: int = 0) -> tuple[str, ...]:
        return "loop.py", str(lines), str(self.folder / "job"), str(code)

    def job(self, job_id: str) -> dict[str, Any]:
        done = self.muster("ps", "--json", "--all", limit=30)
        return next(job for job in json.loads(done.out) if job["id"] == job_id)

    def phase(self, job_id: str, phase: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["phase"] == phase else None

        return wait_until(f"{job_id} {phase}", look, 60, every=0.5)


@pytest.fixture
def laptop(cluster: Lab, shared: Path) -> Iterator[Laptop]:
    folder = Path(tempfile.mkdtemp(dir=shared))
    user = Laptop(cluster, folder)
    yield user
    cluster.heal("h1")
    user.hold.unlink(missing_ok=True)
    if any(controllers(cluster, host) for host in cluster.names):
        user.muster("stop", "--all", "--now")


def controllers(lab: Lab, host: str) -> list[str]:
    """What runs of a job on a host."""
    return [command for _, command in lab.processes(host)]


def test_a_job_from_a_laptop_is_followed_and_stopped_from_there(laptop: Laptop) -> None:
    laptop.hold.touch()
    job_id = laptop.detach(100000, 0, "--env", "GIVEN=secret-4711")
    assert controllers(laptop.lab, "h1") == []  # nothing of it is left on the laptop
    seen = " ".join(command for host in ("h2", "h3") for command in controllers(laptop.lab, host))
    assert "secret-4711" not in seen
    kept = laptop.state / "muster" / "jobs" / job_id / "remote.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "secret-4711" not in kept.read_text()

    assert re.search(rf"^{job_id}  running on h2 +\d+s +2@h2,h3 +loop.py", laptop.muster("ps").out, re.MULTILINE)
    laptop.hold.unlink()
    wait_until("lines", lambda: "line 5" in laptop.muster("logs", "loop").out, 60)
    lines = laptop.muster("logs").out
    assert "[h2 0] line 0 h2 secret-4711 carried" in lines
    assert "[h3 1] line 0 h3 secret-4711 carried" in lines
    assert laptop.muster("logs", job_id, "--rank", "1").out.startswith("line 0 h3 secret-4711 carried\nline 1")
    assert f"{job_id}: running" in laptop.muster("show").out
    assert "Stack trace of ranks 0, 1" in laptop.muster("show", "--stacks").out
    assert "running on h2" in laptop.muster("top", "--once").out

    stopped = laptop.muster("stop")
    assert stopped.code == 0, stopped.said
    assert stopped.err.endswith(f"job {job_id} was stopped by muster stop; no process of it is left\n")
    assert (laptop.job(job_id)["status"], laptop.job(job_id)["exit_code"]) == ("stopped", 143)
    again = laptop.muster("stop", job_id)
    assert (again.code, "nothing to stop" in again.err) == (0, True), again.said


def test_the_laptop_may_lose_its_network_and_its_processes(laptop: Laptop) -> None:
    laptop.hold.touch()
    job_id = laptop.detach(30, 7)
    follower = laptop.start("logs", "-f")
    assert follower.stdout is not None
    wait_until("the first line", follower.stdout.readline, 30)
    laptop.lab.cut("h1")
    for pid, _ in laptop.lab.processes("h1"):
        os.kill(pid, signal.SIGKILL)
    follower.communicate(timeout=patience(10))
    begin = time.monotonic()
    listed = laptop.muster("ps", limit=30).out
    assert time.monotonic() - begin < 20  # it asks with a limit
    assert f"{job_id}  running on h2" in listed
    failed = laptop.muster("logs", limit=60)
    assert (failed.code, "the controller of job" in failed.err) == (125, True), failed.said
    assert "hint: check that `ssh h2 true` works from here; the job keeps running meanwhile" in failed.err
    kept = laptop.state / "muster" / "jobs" / job_id / "state.json"
    os.utime(kept, (time.time() - 300, time.time() - 300))
    assert f"{job_id}  running on h2 5 min ago" in laptop.muster("ps", limit=30).out

    laptop.hold.unlink()
    wait_until("the end of the job", lambda: not controllers(laptop.lab, "h2"), 60)
    laptop.lab.heal("h1")
    wait_until("the laptop's network", lambda: laptop.job(job_id)["status"] == "failed 7", 60)
    logs = laptop.muster("logs").out
    assert [logs.count(f"line {number} h2") for number in range(30)] == [1] * 30
    assert [logs.count(f"line {number} h3") for number in range(30)] == [1] * 30
    assert "failed 7" in laptop.muster("show").out


def test_attach_follows_to_the_end_and_returns_the_exit_code(laptop: Laptop) -> None:
    laptop.hold.touch()
    laptop.detach(5, 255)  # the code with which ssh itself fails
    follower = laptop.start("attach")
    assert follower.stdout is not None
    assert "line 0" in follower.stdout.readline()
    laptop.hold.unlink()
    out, err = follower.communicate(timeout=patience(60))
    assert (follower.returncode, "line 4 h3" in out) == (255, True), err


def test_ctrl_c_leaves_the_job_and_nothing_else_running(laptop: Laptop) -> None:
    laptop.hold.touch()
    job_id = laptop.detach(100000)
    before = len(controllers(laptop.lab, "h2"))
    for command, code in {"attach": 0, "logs -f": 130, "dashboard": 0}.items():
        follower = laptop.start(*command.split())
        assert follower.stdout is not None
        line = follower.stdout.readline()
        if command == "dashboard":
            url = line.strip()
            get = f"import urllib.request as r; print(r.urlopen('{url}state.json', timeout=20).read().decode())"
            answer = laptop.lab.run("h1", ["python3", "-c", get], timeout=40)
            assert json.loads(answer.stdout)["id"] == job_id, answer.stderr
        follower.send_signal(signal.SIGINT)
        _, err = follower.communicate(timeout=patience(30))
        assert follower.returncode == code, f"{command}: {err}"
        wait_until(f"the end of {command} on the host", lambda: len(controllers(laptop.lab, "h2")) == before, 30)
        assert controllers(laptop.lab, "h1") == [], command
    assert laptop.job(job_id)["status"] == "running on h2"


def test_on_a_terminal_a_remote_job_looks_and_obeys_as_a_local_one(laptop: Laptop) -> None:
    laptop.hold.touch()
    laptop.detach(100000)
    env = {**PLAIN, "XDG_STATE_HOME": str(laptop.state), "PS1": "ready$ "}
    shell = [*laptop.lab.enter_argv("h1", cwd=str(laptop.folder)), "bash", "--norc", "-i"]
    with OnTerminal(shell, laptop.folder, env, columns=120) as terminal:
        terminal.type(f"{MUSTER} attach\n")
        terminal.wait_for(r"\x1b\[\d+m\[h2 0\]")  # in color
        terminal.type("\x1a")
        terminal.wait_for("Stopped")
        terminal.type("fg\n")
        laptop.hold.unlink()
        terminal.wait_for("line 20 h2")
        terminal.type(CTRL_C)
        terminal.wait_for("detached. The job keeps running; stop it with `muster stop loop`")
        terminal.type(f"{MUSTER} top\n")
        terminal.wait_for(r"running on h2")
        terminal.wait_for(r"RANK +HOST +STATE")
        terminal.type("\x1a")
        terminal.wait_for(r"Stopped.*top")
        terminal.type("fg\n")
        terminal.type("q")
        wait_until("the end of top", lambda: terminal.screen.count("\x1b[?1049l") == 2, 30, lambda: terminal.screen)
        terminal.type("echo code $? here\n")
        terminal.wait_for("code 0 here")


def test_the_working_directory_of_the_laptop_reaches_all_hosts(laptop: Laptop) -> None:
    laptop.lab.run("h1", ["mkdir", "-p", "/root/only-here"], timeout=10)
    script = "import os; os.mkdir('out'); open(f'out/{os.environ[\"RANK\"]}', 'w').write('x'); print('ran', flush=True)"
    laptop.lab.run("h1", ["sh", "-c", "cat > /root/only-here/work.py"], input=script, timeout=10)
    argv = ("--detach", *FAST, "--sync", "--fetch", "out", "--notify", "desktop", "-H", "h2:1,h3:1", "work.py")
    done = laptop.muster("run", *argv, cwd=Path("/root/only-here"))
    assert done.code == 0, done.said
    assert "--notify desktop has no effect: the controller is on h2" in done.err
    wait_until("the end of the job", lambda: not controllers(laptop.lab, "h2"), 60)
    assert laptop.job(done.out.strip())["phase"] == "ended"
    assert laptop.muster("logs").out.count("ran") == 2
    copy = re.search(r"copy them from there with `scp -r h2:(\S+)/out \.`", done.err)
    assert copy is not None, done.err
    assert laptop.lab.run("h2", ["ls", f"{copy[1]}/out"], timeout=10).stdout.split() == ["0", "1"]
    assert f"Results: on h2, `scp -r h2:{copy[1]}/out .` copies them\n" in laptop.muster("show").out
    without = laptop.muster("run", "--detach", *FAST, "-H", "h2:1,h3:1", "work.py", cwd=Path("/root/only-here"))
    assert without.code == 125, without.said
    assert "the working directory /root/only-here does not exist" in without.err, without.said


def test_a_host_that_cannot_log_in_to_the_others_does_not_get_the_controller(laptop: Laptop) -> None:
    key = os.path.expanduser("~/.ssh/id_ed25519")
    argv = ("run", "--detach", *FAST, "-H", "h2:1,h3:1", *laptop.loop(3))
    assert laptop.lab.run("h2", ["mv", key, f"{key}.away"], timeout=10).returncode == 0
    try:
        explicit = laptop.muster(*argv[:2], "--controller", "h2", *argv[2:])
        assert explicit.code == 125, explicit.said
        assert "error: --controller h2: h2 cannot log in to h3 (h3: ssh login denied" in explicit.err
        assert "hint: `muster setup ssh --between -H h2,h3`" in explicit.err
        here = laptop.muster(*argv)
        assert "the controller stays on this machine because h2 cannot log in to h3" in here.err
        assert (here.code, "Its controller is on" in here.err) == (0, False), here.said
    finally:
        laptop.lab.run("h2", ["mv", f"{key}.away", key], timeout=10)
    done = laptop.muster(*argv[:2], "--controller", "local", *argv[2:])
    assert (done.code, "ontroller" in done.err) == (0, False), done.said


@pytest.mark.parametrize("moment", ["starting the controller on h2", "connecting to h3"])
@pytest.mark.parametrize("way", ["SIGINT", "SIGKILL", "cut"])
def test_a_start_that_is_interrupted_leaves_a_job_that_runs_or_none(laptop: Laptop, moment: str, way: str) -> None:
    laptop.hold.touch()
    process = laptop.start("run", "--detach", *FAST, "-H", "h2:1,h3:1", *laptop.loop(100000))
    assert process.stderr is not None
    seen: list[str] = []
    while not seen or moment not in seen[-1]:
        seen.append(process.stderr.readline())
        assert seen[-1], seen
    if way == "cut":
        laptop.lab.cut("h1")
    else:
        process.send_signal(getattr(signal, way))
    out, err = process.communicate(timeout=patience(60))
    laptop.lab.heal("h1")
    if way == "SIGINT":
        assert process.returncode in (0, 130), err  # it may have started just before
    if out:
        assert laptop.phase(out.strip(), "running")
        return
    jobs = [folder.name for folder in laptop.state.glob("muster/jobs/*")]
    if not jobs:
        return
    (job_id,) = jobs

    def is_settled() -> bool:
        """Whether the job runs with both ranks, has ended, or was never there."""
        job = laptop.job(job_id)
        if job["status"] in ("running on h2", "stopped") or "failed" in job["status"]:
            return True
        return job["status"] == "unknown" and not controllers(laptop.lab, "h2")

    wait_until("a job that runs or none", is_settled, 60, lambda: str(laptop.job(job_id)), every=0.5)
    if laptop.job(job_id)["status"] != "running on h2":
        wait_until("no process", lambda: not controllers(laptop.lab, "h2") and not controllers(laptop.lab, "h3"), 60)

"""Kept hosts: the next run reuses agents and zygotes, is never stale, and nothing is left when they end.

Tests share a state directory: what one has kept and left serves the first run of the next, so that fewer zygotes import
torch. A test asserts that something is new or kept only after it has seen to that itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launching import MUSTER, PLAIN, Done, HostJob, run_here
from waiting import ending, patience, wait_until

from muster.lab import Lab
from muster.spec import LEASE_ALONE

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.timeout(300)]

# Ranks print the process that forked them, which is the zygote.
SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("zygote", os.getppid(), "sum", int(total), "args", *sys.argv[1:], "in", os.getcwd(), "A", os.environ.get("A"))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a script, and the state directory of the tests on this machine."""
    path = tmp_path_factory.mktemp("keep")
    (path / "train.py").write_text(SCRIPT)
    yield path
    keep(path, "--end")


def run(folder: Path, *argv: str, cwd: Path | None = None, **env: str) -> Done:
    """`muster run` with the state directory of the tests, which has to succeed."""
    done = run_here(cwd or folder, *argv, state=folder / "state", **env)
    assert done.code == 0, done.said
    return done


def keep(folder: Path, *argv: str) -> Done:
    return run_here(folder, *argv, command="keep", state=folder / "state")


def zygote(done: Done) -> int:
    """The process that forked the ranks."""
    (found,) = {int(pid) for pid in re.findall(r"zygote (\d+)", done.out)}
    return found


def keeper_of(folder: Path) -> int:
    """The process that keeps hosts for the state directory of the test."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_of(folder)))
        return json.loads(connection.makefile("rb").readline())["pid"]


def socket_of(folder: Path) -> Path:
    """Where it listens."""
    name = hashlib.sha256(os.fsencode(folder / "state" / "muster")).hexdigest()[:16]
    return Path(f"/tmp/muster-{os.getuid()}/keep-{name}.socket")


@contextmanager
def waiting_job(folder: Path) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """A job that runs until it is stopped, and its rank."""
    (folder / "wait.py").write_text("import os, time, torch\nprint('rank', os.getpid(), flush=True)\ntime.sleep(999)\n")
    env = {**PLAIN, "XDG_STATE_HOME": str(folder / "state")}
    with (
        (folder / "out").open("wb") as out,
        ending(subprocess.Popen([MUSTER, "run", "wait.py"], cwd=folder, env=env, stdout=out, stderr=out)) as job,
    ):
        yield job, int(wait_until("the rank", lambda: re.search(r"rank (\d+)", (folder / "out").read_text()))[1])


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def test_the_next_run_reuses_the_kept_host_and_says_so_first(folder: Path, tmp_path: Path):
    keep(folder, "--end")
    first = run(folder, "--keep", "5m", "--nproc", "2", "train.py")
    assert "stay for 5m" in first.err, first.said
    (tmp_path / "other.py").write_text(SCRIPT)
    second = run(folder, "--nproc", "3", "--env", "A=1", "other.py", "--lr", "2", cwd=tmp_path)
    assert second.err.splitlines()[0].startswith("muster: reusing the agents kept on"), second.said
    assert zygote(second) == zygote(first), first.said + second.said
    assert second.out.count(f"sum 3 args --lr 2 in {tmp_path} A 1") == 3, second.said
    listed = json.loads(keep(folder, "--json").out)
    assert len(listed) == 1
    assert 20e6 < listed[0]["memory"] < 250e6, listed


def test_no_keep_starts_a_new_agent_and_leaves_the_kept_one(folder: Path):
    first = run(folder, "--keep", "5m", "--nproc", "1", "train.py")
    fresh = run(folder, "--no-keep", "--nproc", "1", "train.py")
    assert "reusing" not in fresh.err
    assert zygote(fresh) != zygote(first)
    assert is_gone(zygote(fresh))
    assert zygote(run(folder, "--nproc", "1", "train.py")) == zygote(first)


def test_ctrl_c_ends_the_ranks_and_the_host_stays_kept(folder: Path):
    first = run(folder, "--keep", "5m", "--nproc", "1", "train.py")
    with waiting_job(folder) as (job, rank):
        job.send_signal(signal.SIGINT)
        assert job.wait(patience(30)) == 130
    assert is_gone(rank)
    assert zygote(run(folder, "--nproc", "1", "train.py")) == zygote(first)


def test_ranks_of_a_kept_host_read_the_stdin_of_their_run(folder: Path):
    (folder / "read.py").write_text("import torch\nprint('got', input())\n")
    run(folder, "--keep", "5m", "--nproc", "1", "train.py")
    done = subprocess.run(
        [MUSTER, "run", "--nproc", "1", "read.py"],
        cwd=folder,
        env={**PLAIN, "XDG_STATE_HOME": str(folder / "state")},
        input=b"hello\n",
        capture_output=True,
        timeout=patience(60),
    )
    assert b"reusing" in done.stderr
    assert b"got hello" in done.stdout, done.stderr


def test_other_users_neither_see_nor_reach_nor_end_it(folder: Path):
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    done = run(folder, "--keep", "5m", "--nproc", "1", "train.py")
    look = """if 1:
        import os, socket, sys
        path, zygote = sys.argv[1], int(sys.argv[2])
        for attempt in (lambda: os.listdir(os.path.dirname(path)), lambda: socket.socket(socket.AF_UNIX).connect(path),
                        lambda: os.unlink(path), lambda: os.kill(zygote, 9)):
            try: attempt(); print("reached")
            except PermissionError: print("denied")
    """
    name = socket_of(folder)
    other = subprocess.run(
        ["setpriv", "--reuid", "65534", "--clear-groups", sys.executable, "-c", look, name, str(zygote(done))],
        capture_output=True,
        text=True,
        timeout=patience(60),
        cwd="/",
    )
    assert other.stdout.split() == ["denied"] * 4, other
    assert not is_gone(zygote(done))


def test_again_repeats_a_job_with_other_arguments(folder: Path, tmp_path: Path):
    env = {"SOME_TOKEN": "hush", "A": "7"}
    first = run(folder, "--keep", "5m", "--nproc", "2", "train.py", "--lr", "1", **env)
    assert b"hush" not in b"".join(file.read_bytes() for file in first.folder.rglob("*") if file.is_file())
    again = run_here(tmp_path, "--", "--lr", "5", command="again", state=folder / "state")
    assert again.code == 0, again.said
    assert "SOME_TOKEN was set" in again.err
    assert again.out.count(f"sum 2 args --lr 5 in {folder} A 7") == 2, again.said
    assert zygote(again) == zygote(first)
    wrong = run_here(folder, "--without", "b", command="again", state=folder / "state")
    assert wrong.code == 2
    assert "--without b: not a host of the job" in wrong.err


def test_another_environment_of_the_interpreter_gets_a_new_zygote_and_the_reason(folder: Path):
    first = run(folder, "--keep", "5m", "--nproc", "1", "train.py")
    second = run(folder, "--nproc", "1", "--env", "PYTHONHASHSEED=7", "train.py")
    assert "starting a new zygote instead of the kept one: PYTHONHASHSEED differs" in second.err, second.said
    assert zygote(second) != zygote(first)
    third = run(folder, "--nproc", "1", "--env", "PYTHONHASHSEED=7", "train.py")
    assert zygote(third) == zygote(second), third.said


def test_a_changed_module_is_imported_again(folder: Path, tmp_path: Path):
    (tmp_path / "mine.py").write_text("value = 1\n")
    old = time.time() - 1000
    os.utime(tmp_path / "mine.py", (old, old))
    (tmp_path / "train.py").write_text(SCRIPT + "import mine; print('value', mine.value)\n")
    first = run(folder, "--keep", "5m", "--preload", "mine", "--nproc", "1", "train.py", cwd=tmp_path)
    assert "value 1" in first.out
    assert zygote(run(folder, "--preload", "mine", "--nproc", "1", "train.py", cwd=tmp_path)) == zygote(first)
    (tmp_path / "mine.py").write_text("value = 2\n")
    second = run(folder, "--preload", "mine", "--nproc", "1", "train.py", cwd=tmp_path)
    assert "mine.py has changed" in second.err, second.said
    assert "value 2" in second.out, second.said
    third = run(folder, "--nproc", "1", "train.py", cwd=tmp_path)
    assert "has imported mine, which this job does not preload" in third.err, third.said


def test_a_file_that_shadows_an_imported_module_is_noticed(folder: Path, tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    first = run(folder, "--keep", "5m", "--nproc", "1", "train.py", cwd=tmp_path)
    (tmp_path / "numbers.py").write_text("from _pyio import *\nIntegral = Number = Real = Complex = Rational = int\n")
    second = run_here(tmp_path, "--nproc", "1", "train.py", state=folder / "state")
    assert "numbers.py would be imported instead of another numbers" in second.err, second.said
    assert f"zygote {zygote(first)}" not in second.out


def test_a_zygote_that_died_is_replaced_before_the_job_is_announced(folder: Path):
    first = run(folder, "--keep", "5m", "--nproc", "1", "train.py")
    os.kill(zygote(first), signal.SIGKILL)
    second = run(folder, "--nproc", "1", "train.py")
    assert "the kept zygote has ended, starting a new one" in second.err, second.said
    assert second.err.index("has ended") < second.err.index("rendezvous at"), second.said


def test_it_ends_when_its_time_is_over(folder: Path):
    done = run(folder, "--keep", "1s", "--nproc", "1", "train.py")
    wait_until("the end of the kept host", lambda: is_gone(zygote(done)))
    wait_until("the end of the keeper", lambda: "no hosts are kept" in keep(folder).err)


def test_nothing_is_left_when_the_keeper_is_killed(folder: Path):
    done = run(folder, "--keep", "5m", "--nproc", "1", "train.py")
    os.kill(keeper_of(folder), signal.SIGKILL)
    wait_until("the end of the kept host", lambda: is_gone(zygote(done)), LEASE_ALONE + 5)
    (folder / "plain.py").touch()
    assert "reusing" not in run(folder, "--nproc", "1", "--no-zygote", "plain.py").err


def test_nothing_is_kept_unless_asked_for(folder: Path):
    keep(folder, "--end")
    done = run(folder, "--nproc", "1", "train.py")
    assert "no hosts are kept" in keep(folder).err
    assert is_gone(zygote(done))


def test_a_run_that_is_killed_takes_its_ranks_and_the_kept_host_along(folder: Path):
    first = run(folder, "--keep", "5m", "--nproc", "1", "train.py")
    with waiting_job(folder) as (job, rank):
        assert "used by" in keep(folder).out
        job.kill()
        wait_until("the end of the rank", lambda: is_gone(rank))
        wait_until("the end of the zygote", lambda: is_gone(zygote(first)))
    assert "no hosts are kept" in keep(folder).err


def test_the_keeper_refuses_a_connection_of_another_user(tmp_path: Path):
    from muster.controller.keep.keeper_socket import is_own_user

    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        tmp_path.chmod(0o755)
        os.chmod(path, 0o777)
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r}); input()"
        for user in ("0", "65534"):
            with ending(
                subprocess.Popen(
                    ["unshare", "--mount", "setpriv", "--reuid", user, sys.executable, "-c", code],
                    stdin=subprocess.PIPE,
                    cwd="/",
                )
            ):
                for parent in tmp_path.parents:
                    if parent.owner() == "root" and str(parent).startswith("/tmp/"):
                        parent.chmod(0o755)
                listener.settimeout(patience(20))
                connection, _ = listener.accept()
                with connection:
                    assert is_own_user(connection) is (user == "0")


# --- over ssh ----------------------------------------------------------------------------------------------------


def on_hosts(cluster: Lab, shared: Path, *argv: str, command: str = "run") -> Done:
    """A command on h1, with the script and the state directory of the tests on hosts."""
    (shared / "train.py").write_text(SCRIPT)
    job = HostJob(cluster, "h1", shared, *argv, command=command, XDG_STATE_HOME=str(shared / "state"))
    return job.wait(100)


def zygotes(cluster: Lab, host: str) -> list[int]:
    """The zygotes on a lab host."""
    return [pid for pid, command in cluster.processes(host) if command.startswith("muster zygote")]


def test_a_kept_host_that_rebooted_gets_a_new_agent(cluster: Lab, shared: Path):
    assert on_hosts(cluster, shared, "-H", "h2:1,h3:1", "--keep", "5m", "train.py").code == 0
    cluster.power_off("h3")
    cluster.reboot("h3")
    second = on_hosts(cluster, shared, "-H", "h2:1,h3:1", "train.py")
    assert second.code == 0, second.said
    assert "h3: starting a new agent instead of the kept one" in second.err, second.said
    assert second.err.index("h3: starting a new agent") < second.err.index("rendezvous at")


def test_a_cut_cable_leaves_nothing_after_the_lease(cluster: Lab, shared: Path):
    assert on_hosts(cluster, shared, "-H", "h3:1", "--keep", "5m", "train.py").code == 0
    assert zygotes(cluster, "h3")
    cluster.cut("h3")
    try:
        wait_until("the end of the kept host", lambda: not zygotes(cluster, "h3"), LEASE_ALONE + 5, every=0.5)
    finally:
        cluster.heal("h3")
    (shared / "plain.py").touch()
    done = on_hosts(cluster, shared, "-H", "h3:1", "--no-zygote", "plain.py")
    assert done.code == 0, done.said
    assert "reusing" not in done.err


def test_kept_hosts_over_ssh_serve_the_next_run_and_part_of_them_another(cluster: Lab, shared: Path):
    hosts = ("-H", "h2:2,h3:2")
    first = on_hosts(cluster, shared, *hosts, "--keep", "5m", "train.py")
    assert first.code == 0, first.said
    second = on_hosts(cluster, shared, *hosts, "train.py")
    assert second.err.splitlines()[0].startswith("muster: reusing the agents kept on h2, h3"), second.said
    assert sorted(re.findall(r"zygote (\d+)", first.out)) == sorted(re.findall(r"zygote (\d+)", second.out)), (
        second.said
    )
    third = on_hosts(cluster, shared, "--without", "h2", command="again")
    assert "reusing the agents kept on h3" in third.err, third.said
    assert third.out.count("sum 2") == 2, third.said
    listed = on_hosts(cluster, shared, command="ps")
    assert re.search(r"KEPT HOST .*\nh\d +idle", listed.out), listed.said
    ended = on_hosts(cluster, shared, "--end", command="keep")
    assert "ended the kept agents on h2, h3" in ended.err, ended.said
    assert not [pid for host in ("h2", "h3") for pid in zygotes(cluster, host)]

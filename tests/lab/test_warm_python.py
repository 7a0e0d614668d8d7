"""The Python for tests that has torch imported behaves as a real one does under a launcher."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bare import ENV, script
from waiting import ending, patience, process_state, wait_until
from warm_python import WarmPython

from muster.lab import Lab

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

LOOK = """
import json, os, sys, torch
there = [number for number in range(99) if os.path.exists(f"/proc/self/fd/{number}")]
given = [sys.argv[1:], os.environ["GIVEN"], os.getcwd(), os.umask(0), sorted(os.sched_getaffinity(0))]
print(json.dumps([*given, sys.stdin.read(), there, sys.path[0]]))
sys.exit(3)
"""


def test_a_script_finds_what_its_caller_gave(warm, tmp_path):
    folder = os.path.dirname(path := script(tmp_path, LOOK))
    command = 'exec "$0" "$@" 3<&0 4<&0 5<&0 6<&0 7<&0 8<&0 9<&0'  # all the numbers that the server itself may use
    cpu = min(os.sched_getaffinity(0))
    done = subprocess.run(
        ["sh", "-c", command, "taskset", "-c", str(cpu), warm / "python3", path, "-m", "two words"],
        env={**ENV, "GIVEN": "caf\u00e9"},
        cwd="/usr",
        umask=0o027,
        input="line",
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert json.loads(done.stdout) == [
        ["-m", "two words"],
        "caf\u00e9",
        "/usr",
        0o027,
        [cpu],
        "line",
        [*range(10)],
        folder,
    ]


class Small(WarmPython):
    """A server that starts at once."""

    modules = ("json",)
    programs = ("python3",)


def test_callers_that_are_killed_do_not_end_the_server(tmp_path, monkeypatch):
    user = Small(tmp_path / "small", ENV)
    shim = user.shims() / "python3"
    monkeypatch.chdir(shim.parent)  # a socket's path may be too long
    text = "import sys; print(len(sys.argv[1] + sys.argv[2]))"
    long = "x" * 100_000
    try:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect("socket")
            for _ in range(10):
                with socket.socket(socket.AF_UNIX) as broken:
                    broken.connect("socket")
                    with Path(os.devnull).open() as empty:
                        socket.send_fds(broken, [b"-"], [empty.fileno()])
                killed = subprocess.Popen([shim, "-c", "input()"], env=ENV, stdin=subprocess.PIPE)
                time.sleep(0.01)
                killed.kill()
                killed.communicate()
            done = subprocess.run([shim, "-c", text, long, long], env=ENV, capture_output=True, timeout=patience(60))
    finally:
        user.close()
    assert done.stdout == b"200000\n", done.stderr
    wait_until("the end of the server", lambda: not Path("../socket").exists())


END = """
import atexit, sys

class Cycle:
    def __init__(self):
        self.me = self

    def __del__(self):
        print("deleted")

mine = Cycle()
atexit.register(print, "handled")
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 7])
def test_a_script_ends_with_its_exit_handlers_and_then_its_objects(warm, tmp_path, code):
    argv = [warm / "python3", script(tmp_path, END), str(code)]
    done = subprocess.run(argv, env=ENV, capture_output=True, text=True, timeout=patience(60))
    assert (done.returncode, done.stdout, done.stderr) == (code, "handled\ndeleted\n", "")


def test_the_server_ends_with_its_last_user_and_starts_again_for_the_next(tmp_path):
    def runs(user):
        argv = [user.shims() / "python3", "-c", "import sys; print('json' in sys.modules)"]
        return subprocess.run(argv, env=ENV, capture_output=True, timeout=patience(60)).stdout == b"True\n"

    folder = tmp_path / "small"
    with ThreadPoolExecutor(6) as pool:  # as the workers of xdist, all at once
        first, *others = pool.map(lambda _: Small(folder, ENV), range(6))
        assert len(set(pool.map(Small.shims, (first, *others)))) == 1
    for user in others:
        user.close()
    assert runs(first)
    first.close()
    wait_until("the end of the server", lambda: not (folder / "socket").exists())
    again = Small(folder, ENV)
    assert runs(again)
    again.close()
    wait_until("the end of the second server", lambda: not (folder / "socket").exists())


WAIT = "import os, signal, time; print(os.getpid(), flush=True); time.sleep(1000)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_ends_with_the_process_that_its_launcher_knows(warm, number):
    argv = [warm / "python3", "-c", WAIT]
    with ending(subprocess.Popen(argv, env=ENV, stdout=subprocess.PIPE, text=True)) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        assert pid != started.pid
        started.send_signal(number)
        assert started.wait(patience(60)) == -number
        wait_until("the end of the command", lambda: process_state(pid) in ("", "Z"))


def test_a_signal_that_comes_after_the_end_of_a_command_does_not_change_its_exit_code(warm):
    text = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read(); sys.exit(3)"
    argv = [warm / "python3", "-c", text]
    with ending(subprocess.Popen(argv, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) as shim:
        assert shim.stdin is not None
        assert shim.stdout is not None
        pid = int(shim.stdout.readline())
        shim.send_signal(signal.SIGSTOP)
        shim.stdin.close()
        wait_until("the end of the command", lambda: not process_state(pid))
        time.sleep(0.2)  # until the server has sent the exit code, which nothing shows
        shim.send_signal(signal.SIGTERM)
        shim.send_signal(signal.SIGCONT)
        assert shim.wait(patience(60)) == 3


@pytest.mark.lab
@pytest.mark.skipif(os.geteuid() != 0, reason="hosts with names of their own need root")
def test_a_command_runs_on_the_host_of_its_caller(warm, shared):
    text = "import os, socket; print(socket.gethostname(), sorted(os.listdir('/sys/class/net')))"
    with Lab(1, bind=(shared,)) as lab:
        done = lab.run("h1", [str(warm / "python3"), "-c", text], timeout=patience(60))
    assert (done.returncode, done.stdout) == (0, "h1 ['eth0', 'lo']\n"), done.stderr

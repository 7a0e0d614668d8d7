"""`muster.launch` on lab hosts: over ssh, in a Slurm allocation and above mpirun; lost hosts, and code they lack."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import PLAIN, alive
from waiting import end, wait_until

from muster.lab import Lab
from muster.lab.system_programs import SYSTEM_PATH
from muster.shared.wire import LEASE

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.getuid() != 0, reason="Slurm and host files need a lab started as root"),
]

# What every script here begins with; the function is one of the running script, so it is sent.
BEGIN = """
import json, os, socket, sys, time
import muster
def where(more=0):
    return socket.gethostname(), int(os.environ["RANK"]) + more, os.getcwd()
def launch(function, *args, options="", **more):
    return muster.launch(function, args, options=f"--no-zygote {options}", **more)
"""


@pytest.fixture(scope="module")
def lab(shared: Path) -> Iterator[Lab]:
    slurm = shutil.which("slurmctld", path=SYSTEM_PATH) is not None
    with Lab(3, slurm=slurm, mpi=True, bind=(shared,)) as lab:
        yield lab


@pytest.fixture(autouse=True)
def nothing_left(lab: Lab) -> Iterator[None]:
    """Whatever a test did, no process of its jobs lives on any host afterwards."""
    yield
    wait_until("every process to end", lambda: not alive(lab, lab.names), 20, lambda: str(alive(lab, lab.names)))


class Script:
    """A program on h1 that calls muster.launch."""

    def __init__(self, lab: Lab, shared: Path, body: str, *before: str, cwd: str = "") -> None:
        path = shared / f"script-{time.monotonic_ns()}.py"
        path.write_text(BEGIN + textwrap.dedent(body))
        self._out, self._err = path.with_suffix(".out"), path.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = lab.popen(
                "h1",
                [*before, sys.executable, str(path)],
                cwd=cwd or str(shared),
                env={**PLAIN, "XDG_STATE_HOME": str(path.with_suffix(".state"))},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def said(self) -> str:
        return f"--- stdout\n{self.out}\n--- stderr\n{self._err.read_text()}"

    def wait(self, code: int = 0, limit: float = 80) -> str:
        """Its stderr, once it has ended with this code."""
        try:
            ended = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            end(self.process)
            raise AssertionError(f"still running after {limit} s\n{self.said}") from None
        assert ended == code, self.said
        return self._err.read_text()

    def result(self) -> object:
        """What it printed last, as JSON."""
        self.wait()
        return json.loads(self.out.splitlines()[-1])


def test_results_come_from_hosts_over_ssh(lab: Lab, shared: Path) -> None:
    script = Script(lab, shared, "print(json.dumps(launch(where, 10, hosts='h1:1,h2:2', quiet=True)))")
    assert script.result() == [["h1", 10, str(shared)], ["h2", 11, str(shared)], ["h2", 12, str(shared)]]


def test_code_that_is_sent_needs_no_folder_on_the_hosts(lab: Lab, shared: Path) -> None:
    assert lab.run("h1", ["mkdir", "-p", "/tmp/only-on-h1"], timeout=30).returncode == 0
    script = Script(lab, shared, "print(json.dumps(launch(where, hosts=['h1:1', 'h2:1'])))", cwd="/tmp/only-on-h1")
    result = script.result()
    assert isinstance(result, list)
    assert result[0] == ["h1", 0, "/tmp/only-on-h1"]
    assert result[1][:2] == ["h2", 1]
    assert os.path.realpath(result[1][2]) == os.path.realpath(PLAIN["HOME"])
    assert "h2: /tmp/only-on-h1 does not exist, so its ranks run in the home directory" in script.wait()


# A project on the disk of h1, with a module whose function is only named.
PROJECT = """
os.makedirs("/tmp/project/pkg", exist_ok=True)
os.chdir("/tmp/project")
open("pkg/__init__.py", "w").close()
open("pkg/steps.py", "w").write("import os\\ndef f(): return os.uname().nodename, os.path.dirname(__file__)\\n")
sys.path.insert(0, "/tmp/project")
from pkg import steps
"""


def test_a_module_that_hosts_lack_is_an_error_that_names_sync_and_sync_sends_it(lab: Lab, shared: Path) -> None:
    script = Script(lab, shared, PROJECT + "launch(steps.f, hosts='h1:1,h2:1')")
    assert "HostError: h2: the working directory /tmp/project does not exist\n\nhint: use `--sync`" in script.wait(1)
    script = Script(lab, shared, PROJECT + "print(json.dumps(launch(steps.f, hosts='h1:1,h2:1', options='--sync')))")
    result = script.result()
    assert isinstance(result, list)
    assert [host for host, _ in result] == ["h1", "h2"]
    assert {folder for _, folder in result} & {"/tmp/project/pkg"} == set()
    lab.run("h2", ["sh", "-c", "mkdir -p /tmp/project/pkg; echo old > /tmp/project/pkg/steps.py"], timeout=30)
    script = Script(lab, shared, PROJECT + "launch(steps.f, hosts='h1:1,h2:1')")
    assert "h2: pkg/steps.py differs from the one on this machine" in script.wait(1)


def test_an_exception_on_another_host_names_it(lab: Lab, shared: Path) -> None:
    body = """
    class Bad(Exception):
        def __init__(self, *, why):
            super().__init__("bad")
            self.why = why
    def fail():
        if os.environ["RANK"] == "2": raise Bad(why="a reason")
        time.sleep(600)
    try:
        launch(fail, hosts="h1:1,h2:2")
    except Bad as error:
        print(json.dumps([error.why, error.__cause__.rank, error.__cause__.host, str(error.__cause__)]))
    """
    result = Script(lab, shared, body).result()
    assert isinstance(result, list)
    assert result[:3] == ["a reason", 2, "h2"]
    assert 'raise Bad(why="a reason")' in result[3]


def test_a_lost_host_is_named_and_what_came_before_is_kept(lab: Lab, shared: Path) -> None:
    body = """
    def stay():
        if os.environ["RANK"] == "0":
            print("pid", os.getpid(), flush=True)
            return "early"
        print("staying", flush=True)
        time.sleep(600)
    try:
        launch(stay, hosts="h1:1,h3:1")
    except muster.LaunchError as error:
        print(json.dumps([error.message, error.results]))
    """
    script = Script(lab, shared, body)
    wait_until("rank 1", lambda: "staying" in script.out, 30, lambda: script.said)
    pid = wait_until("rank 0", lambda: re.search(r"pid (\d+)\n", script.out), 30, lambda: script.said)[1]
    there = ["test", "-e", f"/proc/{pid}"]
    wait_until("the end of rank 0", lambda: lab.run("h1", there, timeout=30).returncode, 30)
    lab.power_off("h3")
    try:
        result = script.result()
        assert isinstance(result, list)
        assert result[0].startswith("host h3 is lost: ")
        assert result[1] == {"0": "early"}
    finally:
        lab.reboot("h3")


def test_a_slow_line_is_busy_longer_than_the_lease_and_no_host_is_given_up(lab: Lab, shared: Path) -> None:
    lab.slow("h2", rate="8mbit")
    try:
        begin = time.monotonic()
        script = Script(lab, shared, "print(len(launch(lambda data: data, bytes(4 << 20), hosts='h2:1')[0]))")
        assert script.result() == 4 << 20
        assert time.monotonic() - begin > 2 * LEASE
    finally:
        lab.heal("h2")
    assert "lost" not in script.wait()


def test_ctrl_c_ends_the_ranks_on_every_host_first(lab: Lab, shared: Path) -> None:
    script = Script(lab, shared, "launch(lambda: [print('up', flush=True), time.sleep(600)], hosts='h1:1,h2:1')")
    wait_until("both ranks", lambda: script.out.count("] up") == 2, 30, lambda: script.said)
    script.process.send_signal(signal.SIGINT)
    said = script.wait(-signal.SIGINT, 40)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "Error" not in said


def test_an_allocation_of_slurm_is_used(lab: Lab, shared: Path) -> None:
    if shutil.which("slurmctld", path=SYSTEM_PATH) is None:
        pytest.skip("apt-get install slurmctld slurmd slurm-client munge")
    body = "r = launch(where); print(json.dumps([r, len(launch(lambda n: bytes(n), 40 << 20, quiet=True)[2])]))"
    script = Script(lab, shared, body, "salloc", "--quiet", "-N2", "-n3", "-wh1,h2")
    result = script.result()
    assert result == [[["h1", 0, str(shared)], ["h1", 1, str(shared)], ["h2", 2, str(shared)]], 40 << 20]
    assert "detected: Slurm allocation" in script.wait()


def test_ranks_of_mpirun_are_called_too(lab: Lab, shared: Path) -> None:
    body = """
    def size(): return os.environ["OMPI_COMM_WORLD_SIZE"], os.environ["RANK"], socket.gethostname()
    more = dict(engine="mpi", hosts="h1:2,h2:1", options="--mpi-args=--allow-run-as-root")
    results = launch(size, **more)
    def fail(): raise OSError(2, "nothing", "/there") if os.environ["RANK"] == "2" else time.sleep(600)
    try:
        launch(fail, **more)
    except FileNotFoundError as error:
        print(json.dumps([results, error.filename, error.__cause__.rank, error.__cause__.host]))
    """
    result = Script(lab, shared, body).result()
    assert result == [[["3", "0", "h1"], ["3", "1", "h1"], ["3", "2", "h2"]], "/there", 2, "h2"]

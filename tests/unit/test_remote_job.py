"""The parts of a controller on another host that need no other host: what is sent, what is kept, what is refused."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.cli import main
from muster.cli.remote_commands import _forwarded, forward  # pyright: ignore[reportPrivateUsage]
from muster.cli.remote_order import JobOrder, prepared_here
from muster.errors import HostError, RemoteJob
from muster.hosts import Host, parse_hosts
from muster.job import Job, Script, make_job_folder
from muster.jobs import remote_states
from muster.jobs.job_folders import find, here, read_job
from muster.jobs.prune import prune
from muster.jobs.ps_text import status
from muster.jobs.remote_package import STAGE, package
from muster.jobs.remote_place import RemotePlace, read_place, write_place
from muster.jobs.remote_python import RemotePython
from muster.jobs.state import JobState
from muster.shared.bootstrap import COMMAND
from muster.spec import RunSpec

pytestmark = pytest.mark.timeout(60)

JOB = "20261116-120000-train-3f9a"
PLACE = RemotePlace(host=Host(name="a", user="me", port=2222), package="0" * 64, mark="m")
RUNNING = JobState(
    id=JOB, command="train.py", cwd="/", engine="ssh", begin=1.0, now=2.0, phase="running", controller=7, host="a"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The job directory on the laptop."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(remote_states, "_asked", time.monotonic())  # nobody is asked
    folder = make_job_folder(JOB)
    write_place(folder, PLACE)
    return folder


def test_a_job_arrives_as_it_was_sent():
    hosts = parse_hosts("a:0,2,me@b:3,c")
    spec = RunSpec(
        target="train.py",
        args=("--lr", "0.1", "\udcff"),
        cwd="/work",
        hosts=hosts,
        env={"TOKEN": "x\ny"},
        host_python={"b": "/b/python"},
        only_ranks=frozenset({0, 3}),
        notify=("curl x",),
        restarts=3,
        spares=1,
    )
    job = Job(
        id=JOB,
        spec=spec,
        hosts=hosts,
        carried={"NCCL_DEBUG": "INFO"},
        script=Script(path="train.py", digest=[3, 4], text="pass"),
        preload=("torch", "numpy"),
        has_store=False,
    )
    order = JobOrder(job=job, own=Host(name="a"), notes=("one",), mark="m", code_size=5)
    assert JobOrder.from_data(json.loads(json.dumps(order.as_data()))) == order

    launch = prepared_here(order, job).launch
    assert [(command.argv[0], command.remote) for command in launch.commands][1:] == [("ssh", True)] * 2
    assert (launch.commands[0].argv[0], launch.commands[0].remote) == (sys.executable, False)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["-H", "a"], "--controller works only with --detach"),
        (["--detach"], "--controller a: --engine local starts the job from this machine"),
        (["--detach", "--lab", "2"], "--controller a: the hosts of --lab live on this machine"),
        (["--detach", "-H", "a,localhost"], "--controller a: this machine is one of the hosts"),
        (["--detach", "-H", "a", "--controller", "a,b"], "--controller a,b: must be one host or `local`"),
        (["--detach", "-H", "a", "--controller", "a:2"], "--controller a:2: must be one host or `local`"),
        (["--detach", "-H", "a", "--controller", "a["], "--controller"),
    ],
)
def test_a_controller_that_cannot_be_is_refused_in_one_sentence(
    argv: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["run", "--controller", "a", *argv, "train.py"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {sentence}")
    assert "hint: " in said


def test_the_first_stage_refuses_the_versions_of_python_that_muster_does_not_support():
    needed = re.search(r'requires-python = ">=3\.(\d+)"', (Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert needed is not None
    assert f"version_info<(3,{needed[1]})" in STAGE.decode()
    assert f"Python 3.{needed[1]} or newer" in STAGE.decode()


def test_remote_json_is_private_and_a_damaged_one_is_no_remote_job(folder: Path):
    assert (folder / "remote.json").stat().st_mode & 0o777 == 0o600
    assert read_place(folder) == PLACE
    for text in ("", "[]", '{"host": 3}', '{"host": {"name": "a"}, "life": "well"}', "[" * 100_000):
        (folder / "remote.json").write_text(text)
        assert read_place(folder) is None


def test_a_command_about_a_remote_job_is_forwarded(folder: Path):
    for text in (JOB, "train", "3f9a", "last"):
        with pytest.raises(RemoteJob) as raised:
            find(text)
        assert raised.value.folder == str(folder)
    # On a home directory that both machines share, its files are here when it has ended.
    write_place(folder, replace(PLACE, shared=True))
    assert here(read_job(folder)).life == "unknown"


@pytest.mark.parametrize(
    ("answer", "life", "shown"),
    [
        ({"jobs": {JOB: [RUNNING.as_data(), "alive"]}}, "alive", "running on a"),
        ({"jobs": {JOB: [RUNNING.as_data(), "died"]}}, "died", "controller died"),
        ({"jobs": {JOB: [{**RUNNING.as_data(), "id": "20261116-120000-other-3f9a"}, "alive"]}}, "", "unknown"),
        ({"jobs": {JOB: [{"phase": "running"}, "alive"]}}, "", "unknown"),
        ({"jobs": {JOB: [RUNNING.as_data(), "well"]}}, "", "unknown"),
        ({"jobs": {JOB: 3}}, "", "unknown"),
        ({"jobs": []}, "", "unknown"),
        ({}, "", "unknown"),
    ],
)
def test_an_answer_about_a_job_is_kept_if_it_is_valid(folder: Path, answer: dict[str, Any], life: str, shown: str):
    remote_states.keep(folder, answer)
    place = read_place(folder)
    assert place is not None
    assert (place.life, place.confirmed) == (life, bool(life))
    assert status(read_job(folder), time.time()) == shown


def test_the_last_known_state_has_its_age_and_is_removed_at_last(folder: Path):
    remote_states.keep(folder, {"jobs": {JOB: [RUNNING.as_data(), "alive"]}})
    later = time.time() + 3 * 3600
    assert status(read_job(folder), later) == "running on a 3 h ago"
    assert prune(older=3600.0).removed == ()
    assert prune(older=-1.0).removed == (JOB,)


def test_a_job_that_never_began_is_forgotten(folder: Path, monkeypatch: pytest.MonkeyPatch):
    remote_states.keep(folder, {"jobs": {JOB: [None, "gone"]}})
    assert folder.exists()  # it may be starting
    monkeypatch.setattr(remote_states, "_NEVER_BEGAN", -1.0)
    remote_states.keep(folder, {"jobs": {JOB: [None, "gone"]}})
    assert not folder.exists()


# --- the package and the connection, with a program that stands in for ssh -------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> RemotePlace:
    """A host that is this machine, with a home directory of its own and a shell profile that prints something."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        f"#!/bin/sh\nexport XDG_STATE_HOME={tmp_path}/there\necho welcome to a\necho motd >&2\n"
        f"exec {sys.executable} -I -c '{COMMAND}'\n"
    )
    ssh.chmod(0o755)
    return RemotePlace(host=Host(name="a"), ssh=(str(ssh),), package=package()[0])


def test_the_package_is_sent_once_and_is_complete(place: RemotePlace, tmp_path: Path):
    for _ in range(2):
        with RemotePython(place, {"do": "states", "jobs": [JOB]}) as remote:
            assert remote.receive() == {"jobs": {JOB: [None, "gone"]}}
    (sent,) = (tmp_path / "there" / "muster" / "packages").iterdir()
    assert sent.name == package()[0]
    assert sent.stat().st_mode & 0o777 == 0o700
    names = ["cli.remote_host", "cli.run", "cli.logs", "cli.show", "cli.stop", "cli.attach", "cli.dashboard"]
    more = ["check.beforehand", "dashboard.server", "controller.controller", "api.execution", "controller.summary"]
    load = "\n".join(f"import muster.{name}" for name in [*names, *more])
    alone = f"import sys; sys.path.insert(0, {str(sent)!r})\n{load}\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-I", "-c", alone], check=True, timeout=30)
    assert not (sent / "muster" / "recipes").exists()


def test_all_output_of_a_command_that_ends_at_once_is_shown(
    folder: Path, place: RemotePlace, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    with RemotePython(place, {"do": "states", "jobs": []}) as remote:
        remote.receive()  # the package is there now
    (tmp_path / "there" / "muster" / "jobs" / JOB).mkdir(parents=True)
    ssh, slow = tmp_path / "ssh", tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\necho motd >&2\n{ssh} > {slow}.out 2> {slow}.err\ncat {slow}.err >&2\ncat {slow}.out\n")
    slow.chmod(0o755)
    write_place(folder, replace(place, ssh=(str(slow),)))
    assert forward("show", [JOB, "--bad"], str(folder)) == 2
    out, err = capfd.readouterr()
    assert (out, err.splitlines()[0]) == ("", "error: muster show: unknown option --bad")


def test_what_is_wrong_on_the_host_is_one_sentence(place: RemotePlace, tmp_path: Path):
    packages = tmp_path / "there" / "muster" / "packages"
    packages.mkdir(parents=True)
    packages.chmod(0o777)
    with RemotePython(place, {"do": "start"}) as remote, pytest.raises(HostError) as raised:
        remote.receive()
    assert raised.value.message == f"a: {packages} can be changed by other users"
    assert raised.value.hint == f"run `chmod 700 {packages}` there"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo Permission denied >&2; exit 255", "a: ssh login denied (Permission denied)"),
        ("exec sleep 30", "a: no answer within 1 s"),
        ("printf '\\n\\001muster 3\\n'; sleep 30", "a: sent an invalid message"),
        ("exec yes", "a: sent too much output before an answer"),
    ],
)
def test_a_host_that_does_not_answer_is_named_in_time(tmp_path: Path, script: str, sentence: str):
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\n{script}\n")
    ssh.chmod(0o755)
    begin = time.monotonic()
    far = replace(PLACE, ssh=(str(ssh),))
    with RemotePython(far, {"do": "states", "jobs": []}) as remote, pytest.raises(HostError) as raised:
        remote.receive(1.0 if "exec sleep" in script else 20.0)
    assert raised.value.message == sentence
    assert time.monotonic() - begin < 20


_FORWARDS = """\
#!{python} -IS
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(way,) = (word for word in sys.argv if word.startswith("-L"))
os.write(2, b"lost connection to pod\\n" * 10000)
with open(__file__ + ".pid", "w") as file:
    file.write(str(os.getpid()))
listener = socket.create_server(("127.0.0.1", int(way.split(":")[1])))
time.sleep(60)
"""


def test_a_program_that_forwards_a_port_is_never_blocked_and_always_ended(tmp_path: Path):
    program = tmp_path / "ssh"
    program.write_text(_FORWARDS.format(python=sys.executable))
    program.chmod(0o700)
    place = replace(PLACE, ssh=(str(program),))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with _forwarded(place, port, 1):
        process = Path("/proc", (tmp_path / "ssh.pid").read_text())
        assert process.exists()
    assert not process.exists()

"""What an agent reads of its host and its ranks, and what the job status keeps of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from messages import publish
from waiting import process_state, wait_until

from muster.agent import gpu_metrics
from muster.agent import host_metrics as gauges_module
from muster.agent.guard import Guard
from muster.agent.host_metrics import Gauges
from muster.agent.slow_rank_probe import Examination
from muster.controller.monitor.job_status import JobStatus
from muster.engines.engine import AgentSpec, Launch, StartCommand
from muster.engines.local.engine import LocalEngine
from muster.hosts import parse_hosts
from muster.job import Job
from muster.plan import make_plan
from muster.shared.light_selectors import Selector
from muster.spec import RunSpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux")

ROW = "0, NVIDIA H200, 87, 1000, 143771, 1305, 1980, 81, {hot}, Not Active, Not Active, Active"


def busy_rank(number: int) -> tuple[Any, subprocess.Popen[bytes]]:
    """A process that works, with a child that works too."""
    code = "import os, time\nos.fork()\nos.write(1, b'.')\nend = time.time() + 60\nwhile time.time() < end: pass"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(2) == b".."
    return SimpleNamespace(number=number, pid=process.pid, exited=False), process


def test_a_rank_is_gauged_together_with_its_children():
    sent: list[dict[str, Any]] = []
    rank, process = busy_rank(3)
    try:
        gauges = Gauges(Selector(), sent.append, True, Guard(sent.append))
        gauges.step([rank])

        def gauged() -> bool:
            time.sleep(0.3)  # what is gauged is an average of the time between
            gauges.due = 0.0
            gauges.step([rank])
            return bool(sent[-1]["ranks"]["3"]["cpu"])

        wait_until("the use of the CPU", gauged)
    finally:
        for pid in [process.pid, *gpu_metrics.processes.descendants(process.pid)]:
            os.kill(pid, 9)
        process.communicate()
    first, *_, second = sent
    assert first["ranks"]["3"]["cpu"] is None
    told = second["ranks"]["3"]
    assert told["pid"] == process.pid
    assert told["cpu_seconds"] > first["ranks"]["3"]["cpu_seconds"]
    assert told["cpu"] > 0
    assert told["memory"] > 8 << 20, "two interpreters"
    host = second["host"]
    assert 0 < host["memory_used"] < host["memory_total"]
    assert 0 < host["cpu_use"] <= 1
    assert host["network_in"] >= 0


def test_nothing_is_reported_without_ranks_or_before_it_is_time(monkeypatch: pytest.MonkeyPatch):
    sent: list[dict[str, Any]] = []
    gauges = Gauges(Selector(), sent.append, True, Guard(sent.append))
    gone: Any = SimpleNamespace(number=0, pid=1, exited=True)
    gauges.step([gone])
    assert not sent
    here: Any = SimpleNamespace(number=0, pid=os.getpid(), exited=False)
    monkeypatch.setattr(gauges_module, "EVERY", 60.0)
    gauges.step([here])
    gauges.step([here])
    assert len(sent) == 1


def test_the_job_status_shows_what_an_agent_sends():
    sent: list[dict[str, Any]] = []
    gauges = Gauges(Selector(), sent.append, True, Guard(sent.append))
    rank: Any = SimpleNamespace(number=0, pid=os.getpid(), exited=False)
    gauges.step([rank])
    gauges.due = 0.0
    gauges.step([rank])
    status = sample_status()
    link: Any = SimpleNamespace(name="box")
    sent[-1]["host"]["gpus"] = gpu_metrics.read_smi(ROW.format(hot="Active"))
    publish(status, link, sent[-1])
    publish(status, link, {**sent[-1], "host": {}})  # another agent of the same host, under MPI
    state = status.state()
    assert state.ranks[0].memory == sent[-1]["ranks"]["0"]["memory"]
    assert state.ranks[0].pid == os.getpid()
    assert state.hosts[0].memory_total == sent[-1]["host"]["memory_total"]
    assert state.hosts[0].gpus[0].throttled == "too hot"


def sample_status() -> JobStatus:
    hosts = parse_hosts("box:1")
    job = Job(id="j", spec=RunSpec(target="train.py", cwd="/"), hosts=tuple(hosts), carried={})
    command = StartCommand(argv=("true",), agents=(AgentSpec(host=hosts[0], name="box"),))
    launch = Launch(engine=LocalEngine(), commands=(command,), channel="pipes")
    status = JobStatus(job, launch, time.time())
    status.attempt_begins(0, make_plan("j", hosts, threads=[1], restarts=0, user_env={}), {})
    return status


def test_what_nvidia_smi_prints_is_read():
    (gpu,) = gpu_metrics.read_smi(ROW.format(hot="Not Active") + "\n")
    assert gpu == {
        "index": 0,
        "name": "NVIDIA H200",
        "use": 0.87,
        "memory_used": 1000 << 20,
        "memory_total": 143771 << 20,
        "clock": 1305,
        "clock_max": 1980,
        "temperature": 81,
        "throttled": "power limit reached",
    }
    assert gpu_metrics.read_smi("No devices were found\n") == []
    assert gpu_metrics.read_smi(", ".join(["0", "H200", *["[N/A]"] * 10]))[0]["use"] is None


def put_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def wait_for(what: str, reader: gpu_metrics.Reader, check: Callable[[], object]) -> None:
    """Wait while the reader reads what comes."""

    def turn() -> object:
        for key, _ in reader.selector.select(0):
            key.data()
        return check()

    wait_until(what, turn)


@pytest.mark.skipif(gpu_metrics.are_here(), reason="the driver's own library would answer")
def test_gpus_are_read_in_a_child_that_leaves_with_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put_nvidia_smi(tmp_path, monkeypatch, f"echo '{ROW.format(hot='Active')}'")
    reader = gpu_metrics.Reader(Selector())
    reader.step()
    wait_for("GPUs", reader, lambda: reader.gpus)
    assert reader.gpus[0]["temperature"] == 81
    child = reader._pid
    reader.end()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert reader.gpus == []


@pytest.mark.skipif(gpu_metrics.are_here(), reason="the driver's own library would answer")
def test_an_nvidia_smi_that_hangs_is_killed_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put_nvidia_smi(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    reader = gpu_metrics.Reader(Selector())
    begin = time.monotonic()
    reader.step()
    assert time.monotonic() - begin < 30
    told = tmp_path / "pid"
    wait_for("nvidia-smi", reader, lambda: told.exists() and told.read_text().endswith("\n"))
    child = reader._pid
    reader._heard -= 60
    reader.step()
    assert reader._pid == 0, "the next try is a minute away"
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    pid = int((tmp_path / "pid").read_text())
    wait_for("the end of nvidia-smi", reader, lambda: process_state(pid) in ("", "Z"))


def test_an_examination_reports_ranks_without_cpu():
    cpu = max(os.sched_getaffinity(0))
    busy = f"import os\nos.sched_setaffinity(0, [{cpu}])\nos.write(1, b'.')\nwhile True: pass"
    rank, other = (subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) for _ in range(2))
    sent: list[dict[str, Any]] = []
    try:
        for process in (rank, other):
            assert process.stdout is not None
            assert process.stdout.read(1) == b"."
        of_ours: Any = SimpleNamespace(number=5, pid=rank.pid, exited=False)
        examination = Examination(sent.append, 7, [of_ours], 0.6)
        wait_until("the end of the examination", lambda: examination.step() or examination.is_over)
    finally:
        for process in (rank, other):
            process.kill()
            process.communicate()
    (reply,) = sent
    seen = reply["ranks"]["5"]
    assert reply["re"] == 7
    assert seen["cpu_wait"] > 0.2
    assert 0 < seen["cpu"] < 0.9
    assert seen["cpus"] == 1
    assert seen["disk"] == 0


def test_an_examination_on_a_host_too_busy_for_more_than_one_sample_reports_data_that_waits_to_be_sent():
    sent: list[dict[str, Any]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as full:
        full.setblocking(False)
        while True:
            try:
                full.send(bytes(1 << 16))
            except BlockingIOError:
                break
        Examination(sent.append, 7, [], 0).step()
    assert sent[0]["queues"]["127.0.0.1"] > 100_000


def test_a_gpu_reader_that_cannot_start_is_reported_once_and_the_rest_is_measured():
    """In a process of its own that may have few descriptors: none is left for a pipe."""
    code = """
import os, resource, sys
from muster.shared.light_selectors import Selector
from types import SimpleNamespace
from muster.agent import gpu_metrics as gpus
from muster.agent.host_metrics import Gauges
from muster.agent.guard import Guard
sent = []
selector = Selector()
gauges = Gauges(selector, sent.append, True, Guard(sent.append))
gauges.gpus = reader = gpus.Reader(selector)
open_before = set(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (len(open_before) + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for _ in range(2):
    gauges.due = reader._begin_at = 0.0
    gauges.step([SimpleNamespace(number=0, pid=os.getpid(), exited=False)])
assert set(os.listdir("/proc/self/fd")) == open_before
unseen, *told = sent
assert "Traceback" in unseen.pop("traceback")
why = "OSError: [Errno 24] Too many open files"
assert unseen == {"t": "unseen", "what": "the state of its GPUs", "why": why}, unseen
assert [message["ranks"]["0"]["pid"] for message in told] == [os.getpid()] * 2
assert told[0]["host"]["memory_total"]
reader.step()
assert not reader._pid, "the next try is a minute away"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_a_process_whose_name_is_cut_within_a_character_can_be_examined(tmp_path: Path):
    program = tmp_path / "ääääääää"  # the kernel keeps 15 bytes of a name
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "60"])
    sent: list[dict[str, Any]] = []
    try:
        wait_until("the program to sleep", lambda: process_state(process.pid) == "S")
        assert b"(" + "äääääää".encode() + b"\xc3)" in Path(f"/proc/{process.pid}/stat").read_bytes()
        rank: Any = SimpleNamespace(number=0, pid=process.pid, exited=False)
        examination = Examination(sent.append, 7, [rank], 0.0)
        examination.step()
    finally:
        process.kill()
        process.wait()
    assert sent[0]["ranks"]["0"]["cpu"] == 0

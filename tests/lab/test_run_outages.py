"""A short outage is not a loss: connections break, hosts and controllers stop for a while, and the job continues.

The controller runs inside h1, the ranks on h2 and h3. Each rank prints numbered lines, of which none may get lost or
come twice.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Done, HostJob
from waiting import wait_until

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(150)]

# Prints numbered lines until the test ends it; with a second argument, rank 1, on the host of the outage, prints many.
LINES = """
import os, sys, time
number, filling = 0, "x" * 80 if sys.argv[2:] and os.environ["RANK"] == "1" else ""
while not os.path.exists(sys.argv[1]):
    for _ in range(2000 if filling else 1):
        print("line", number, filling)
        number += 1
    sys.stdout.flush()
    time.sleep(0.01 if filling else 0.03)
print("total", number, flush=True)
"""

# Writes down when it runs.
WRITER = """
import os, time
print("up", flush=True)
with open(f"written-{os.environ['TORCHELASTIC_RUN_ID']}-{os.environ['RANK']}", "w", buffering=1) as file:
    while True:
        file.write(f"{time.monotonic()}\\n")
        time.sleep(0.01)
"""

STRANGER = r"""
import json, re, socket
names = re.findall(r"@(muster-[0-9a-f]{32})", open("/proc/net/unix").read())
for name in set(names):
    forged = b'{"do":"resume","nonce":"a","proof":"b","got":0}\n'
    for answer in (b"\n", b"{}\n", b"\xff\n", b"[" * 10000 + b"\n", forged, b"x" * 9000):
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(20)
        peer.connect("\0" + name)
        challenge = json.loads(peer.makefile("rb").readline())
        assert challenge["t"] == "challenge"
        peer.sendall(answer)
        try:
            assert peer.recv(100) == b""
        except ConnectionResetError:
            pass
print(len(set(names)), "refused")
"""


class Outage:
    """A job that prints lines, and what becomes of it."""

    def __init__(self, lab: Lab, shared: Path) -> None:
        self.lab = lab
        self.shared = shared
        self.stop = shared / f"stop-{time.monotonic_ns()}"
        for name, text in {"lines": LINES, "writer": WRITER, "stranger": STRANGER}.items():
            (shared / f"{name}.py").write_text(text)

    def start(self, *options: str, much: bool = False, **env: str) -> HostJob:
        program = ("lines.py", self.stop.name, *(("much",) if much else ()))
        options = ("--no-check", "--no-zygote", *options, "-H", "h2,h3")
        self.job = HostJob(self.lab, "h1", self.shared, *options, *program, **env)
        for host in ("h2", "h3"):
            wait_until(f"lines of {host}", lambda host=host: f"[{host}" in self.job.out, 60, lambda: self.job.err)
        return self.job

    def processes(self, host: str, *words: bytes) -> list[int]:
        return [pid for pid, _ in self.lab.processes(host) if all(word in cmdline(pid) for word in words)]

    def ssh_client(self, host: str) -> int:
        """The process of the connection to a host, once there is no other attempt."""

        def clients() -> list[int]:
            return [pid for pid in self.processes("h1", b"ssh\0") if host.encode() in cmdline(pid).split(b"\0")]

        wait_until("one connection", lambda: len(clients()) == 1, 30, lambda: str(clients()))
        return clients()[0]

    def resumptions(self, host: str) -> int:
        """How often the connection to a host has been replaced."""
        logs = self.job.state.glob("muster/jobs/*/debug.log")
        return sum(log.read_text().count(f"{host}: resumed") for log in logs)

    def agent(self, host: str) -> int:
        """What listens for its controller there."""
        found = self.lab.run(host, ["sh", "-c", "cat /proc/net/unix | grep -o 'muster-.*'"], timeout=30).stdout
        assert found, "the agent's socket"
        return min(self.processes(host, b"-c\0import sys;exec"))

    def finish(self) -> Done:
        """Let the ranks end, and check that every line has come once."""
        self.stop.touch()
        done = self.job.wait(90)
        assert done.code == 0, done.said[-3000:]
        for rank in (0, 1):
            lines = done.log(rank).decode().splitlines()
            total = int(lines.pop().removeprefix("total "))
            assert [int(line.split()[1]) for line in lines] == list(range(total))
        return done


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def outage(cluster: Lab, shared: Path) -> Iterator[Outage]:
    outage = Outage(cluster, shared)
    yield outage
    outage.stop.touch()
    outage.job.end()
    for host in cluster.status():
        if host.state != "up":
            cluster.thaw(host.name)
        elif host.faults:
            cluster.heal(host.name)
    wait_until(
        "the end of everything",
        lambda: not any(cluster.processes(name) for name in cluster.names),
        40,
        lambda: str([cluster.processes(name) for name in cluster.names]),
    )


@pytest.mark.parametrize("much", [False, True], ids=["little", "much"])
def test_a_killed_ssh_client_is_replaced_and_the_ranks_notice_nothing(outage: Outage, much: bool) -> None:
    job = outage.start(much=much)
    for number in (1, 2):
        os.kill(outage.ssh_client("h3"), signal.SIGKILL)
        wait_until("a new connection", lambda n=number: outage.resumptions("h3") >= n, 30, lambda: job.err)
        begin = job.out.count("[h3")
        wait_until("more lines", lambda begin=begin: job.out.count("[h3") > begin, 20, lambda: job.err)
    done = outage.finish()
    assert "lost h3" not in done.err


@pytest.mark.parametrize(("seconds", "much"), [(6, False), (15, False), (6, True)], ids=["6s", "15s", "6s-much"])
def test_a_host_whose_network_was_cut_is_back_and_nothing_was_lost(outage: Outage, seconds: int, much: bool) -> None:
    job = outage.start(much=much)
    outage.lab.cut("h3")
    time.sleep(seconds)
    outage.lab.heal("h3")
    wait_until("the host", lambda: "h3 is back" in job.err, 20, lambda: job.err)
    agent = outage.agent("h3")
    peak = int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{agent}/status").read_text())[0]) // 1024
    assert peak < 120, "what the ranks print waits in their pipes"
    done = outage.finish()
    found = re.search(
        r"^muster: h3 has been silent for (\d\.\d) s\nmuster: h3 is back after (\S+) s, nothing was lost$",
        done.err,
        re.MULTILINE,
    )
    assert found, done.err
    assert float(found[1]) < seconds


def test_a_controller_that_was_stopped_continues_its_job(outage: Outage) -> None:
    job = outage.start()
    (controller,) = [pid for pid in outage.processes("h1", b"muster\0run") if b"nsenter" not in cmdline(pid)]
    os.kill(controller, signal.SIGSTOP)
    time.sleep(14)
    os.kill(controller, signal.SIGCONT)
    os.kill(job.process.pid, signal.SIGCONT)  # nsenter stops with it
    done = outage.finish()
    assert "lost" not in done.err.replace("nothing was lost", "")


def test_an_agent_that_is_killed_is_known_to_be_dead_long_before_its_lease_ends(outage: Outage) -> None:
    job = outage.start("--lost-after", "60")
    os.kill(outage.agent("h3"), signal.SIGKILL)
    begin = time.monotonic()
    done = job.wait(30)
    assert time.monotonic() - begin < 40
    assert done.code == 125, done.said
    assert "muster: lost h3: its agent died" in done.err


def test_a_host_that_was_frozen_given_up_and_thawed_has_no_ranks_a_moment_later(outage: Outage) -> None:
    outage.stop = outage.shared / "none"
    options = ("--no-check", "--no-zygote", "--lost-after", "3", "--grace", "30")
    outage.job = job = HostJob(outage.lab, "h1", outage.shared, *options, "-H", "h2,h3", "writer.py")
    wait_until("the ranks", lambda: job.out.count("up\n") == 2, 60, lambda: job.err)
    outage.lab.freeze("h3")
    done = job.wait(40)
    assert done.code == 125, done.said
    time.sleep(3)
    thawed = time.monotonic()
    outage.lab.thaw("h3")
    wait_until("the end of its ranks", lambda: not outage.lab.processes("h3"), 10)
    (written,) = outage.shared.glob(f"written-{done.folder.name}-1")
    after = [moment for moment in map(float, written.read_text().split()) if moment > thawed]
    assert len(after) < 50, "the ranks run for less than half a second after the host woke up"


def test_a_host_that_was_frozen_for_less_than_its_lease_continues(outage: Outage) -> None:
    job = outage.start()
    outage.lab.freeze("h3")
    time.sleep(6)
    outage.lab.thaw("h3")
    wait_until("the host", lambda: "h3 is back" in job.err, 20, lambda: job.err)
    outage.finish()


@pytest.fixture
def masters(outage: Outage) -> Iterator[dict[str, str]]:
    """The environment of a user with a master connection to each host, as from `ControlMaster auto`."""
    control = f"-oControlPath={outage.shared}/%h.master"
    (outage.shared / "bin").mkdir()
    (outage.shared / "bin/ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {control} "$@"\n')
    (outage.shared / "bin/ssh").chmod(0o755)
    for host in ("h2", "h3"):
        outage.lab.run("h1", ["ssh", "-fNM", control, host], timeout=30)
    yield {"PATH": f"{outage.shared}/bin:{os.environ['PATH']}"}
    for host in ("h2", "h3"):
        outage.lab.run("h1", ["ssh", "-Oexit", control, host], timeout=30)


def test_a_killed_controller_ends_its_ranks_also_behind_a_master_connection(
    outage: Outage, masters: dict[str, str]
) -> None:
    job = outage.start(**masters)
    job.process.kill()
    for host in ("h2", "h3"):
        wait_until("the end of its ranks", lambda host=host: not outage.processes(host, b"lines.py"), 30)


def test_nobody_but_the_controller_can_take_over_a_session(outage: Outage) -> None:
    outage.start()
    python = [sys.executable, str(outage.shared / "stranger.py")]
    done = outage.lab.run("h3", python, timeout=60)
    assert done.stdout == "1 refused\n", done.stderr
    outage.finish()

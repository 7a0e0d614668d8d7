"""No orphans, no collateral: after every fault nothing of the job lives 10 s later, and another job keeps running.

The controller runs inside h1, the ranks on h2 and h3, so that a cut cable really cuts the controller off. Each rank
ignores SIGINT and SIGTERM and has a child in a session of its own, a daemon that has detached itself, and a worker.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elastic_jobs import parent
from engine_promises import STUBBORN
from launching import Done, HostJob
from waiting import process_state, wait_until

from muster.lab import Lab
from muster.shared.wire import LEASE

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

LIMIT = 20.0
"""Seconds after a fault by which nothing of the job may live: the 10 s of the promise, and as many for a busy machine.

That is far from what an end takes that nobody sees to: minutes in TCP, 1000 s in the ranks.
"""

ALIVE_PER_RANK = 4  # itself, the child with its own session, the daemon, the worker

STUBBORN_TORCH = """
import os, signal, subprocess, time, torch, torch.distributed as dist
signal.signal(signal.SIGTERM, signal.SIG_IGN)
dist.init_process_group("gloo")
subprocess.Popen(["sleep", "1000"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)

class Data(torch.utils.data.Dataset):
    def __len__(self): return 10**9
    def __getitem__(self, index): time.sleep(0.01); return index

batches = iter(torch.utils.data.DataLoader(Data(), num_workers=1))
total = torch.ones(1)
next(batches)
dist.all_reduce(total)
print("up", flush=True)
while True:
    next(batches); dist.all_reduce(total); time.sleep(0.05)
"""

# Another job of the same user: prints a sign of life every 0.1 s until it is asked to end.
BYSTANDER = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    with open(f"{sys.argv[1]}.rank{os.environ['RANK']}", "a") as file: file.write("x")
    time.sleep(0.1)
"""


# One host is enough where torch is imported, which is slow.
FRESH_AND_FORKED = pytest.mark.parametrize(
    ("forked", "hosts"), [(False, "h2,h3"), (True, "h3")], ids=["fresh", "forked"]
)


class Bystander:
    """A second job on the same hosts, which must not notice anything."""

    def __init__(self, lab: Lab, shared: Path, hosts: str) -> None:
        self.hosts = hosts
        self.stop = shared / f"stop-{time.monotonic_ns()}"
        self.world = len(hosts.split(","))
        options = ("--no-zygote", "-H", ",".join(f"{host}:1" for host in hosts.split(",")))
        self.job = HostJob(lab, "h1", shared, *options, "bystander.py", self.stop.name)
        wait_until("the other job", lambda: all(self.ticks()), 30, lambda: self.job.err)

    def ticks(self) -> list[int]:
        """How often each of its ranks has said that it lives."""
        files = [self.stop.with_name(f"{self.stop.name}.rank{rank}") for rank in range(self.world)]
        return [file.stat().st_size if file.exists() else 0 for file in files]

    def check(self) -> None:
        """It still makes progress, and has lost no host."""
        before = self.ticks()
        wait_until(
            "progress of the other job", lambda: all(a > b for a, b in zip(self.ticks(), before, strict=True)), 20
        )
        assert self.job.process.poll() is None, self.job.err
        assert "is lost" not in self.job.err, self.job.err

    def end(self) -> None:
        """It ends well."""
        self.stop.touch()
        done = self.job.wait(30)
        assert done.code == 0, done.said
        assert "is lost" not in done.err, done.said


class Company:
    """The bystander of one test after the other, as long as they want it on the same hosts."""

    def __init__(self, lab: Lab, shared: Path) -> None:
        self.lab = lab
        self.shared = shared
        (shared / "bystander.py").write_text(BYSTANDER)
        self.bystander: Bystander | None = None

    def beside(self, hosts: str) -> None:
        """Have a bystander on these hosts, or none."""
        last, self.bystander = self.bystander, None
        if last and last.hosts == hosts and last.job.process.poll() is None:
            self.bystander = last
            return
        if last:
            last.end()
        if hosts:
            self.bystander = Bystander(self.lab, self.shared, hosts)


@pytest.fixture(scope="module")
def company(cluster: Lab, shared: Path) -> Iterator[Company]:
    company = Company(cluster, shared)
    yield company
    company.beside("")


class Scene:
    """A stubborn job with a bystander, and what is alive of the job."""

    def __init__(self, company: Company) -> None:
        self.lab = company.lab
        self.shared = company.shared
        self.company = company
        (self.shared / "stubborn.py").write_text(STUBBORN)
        (self.shared / "stubborn_torch.py").write_text(STUBBORN_TORCH)
        self.jobs: list[HostJob] = []
        self.spared = self._processes()

    def prepare(self, beside: str) -> None:
        """Have a bystander on these hosts; whatever is there now does not belong to the job."""
        self.company.beside(beside)
        self.spared = self._processes()

    def _processes(self) -> set[int]:
        return {pid for name in self.lab.names for pid, _ in self.lab.processes(name)}

    def start(
        self, *, grace: int | None = 2, forked: bool = False, hosts: str = "h2,h3", beside: str = "h2,h3"
    ) -> HostJob:
        """Start the bystander, then the job, and wait until every rank has all its children.

        `forked` ranks come from a zygote with torch and have a DataLoader; others are fresh interpreters.
        """
        self.prepare(beside)
        places = hosts.split(",")
        where = ["--nproc", "1"] if hosts == "h1" else ["-H", ",".join(f"{host}:1" for host in places)]
        how = ["stubborn_torch.py"] if forked else ["--no-zygote", "stubborn.py"]
        patience = ["--lost-after", str(LEASE)] + ([] if grace is None else ["--grace", str(grace)])
        job = HostJob(self.lab, "h1", self.shared, *where, *patience, *how)
        self.jobs.append(job)
        wait_until("the ranks", lambda: job.out.count("up\n") == len(places), 80, lambda: job.out + job.err)
        for host in places:
            assert len(self.of_job(host)) >= ALIVE_PER_RANK + 1, "the rank with its children, and an agent"
        return job

    def of_job(self, host: str) -> list[int]:
        """Every process of the job on a host: whatever was not there before it."""
        return [pid for pid, _ in self.lab.processes(host) if pid not in self.spared]

    def everything(self) -> dict[str, dict[int, str]]:
        """What of the job still lives, per host."""
        found = {
            name: {pid: command for pid, command in self.lab.processes(name) if pid not in self.spared}
            for name in self.lab.names
        }
        # If a busy host is silent for long, the other job connects to it again: by one ssh, and one process there.
        for client in [pid for pid in found["h1"] if parent(pid) in self.spared and comm(pid) == "ssh"]:
            there = found[next(name for name in self.lab.names if name.encode() in cmdline(client).split(b"\0"))]
            for pid in [pid for pid in there if comm(parent(pid)).startswith("sshd")][:1]:
                del there[pid]
            del found["h1"][client]
        return {name: commands for name, commands in found.items() if commands}

    def nothing_lives(self) -> None:
        """Wait until nothing of the job is alive anywhere."""
        known: list[int] = []

        def is_over() -> bool:
            nonlocal known
            if any(process_state(pid) not in ("", "Z") for pid in known):
                return False  # a look at all processes of the machine is expensive: only when those seen last are gone
            known = [pid for commands in self.everything().values() for pid in commands]
            return not known

        wait_until("the job's processes to be gone", is_over, LIMIT, lambda: str(self.everything()))

    def check(self) -> None:
        """The other job was not disturbed."""
        assert self.company.bystander is not None
        self.company.bystander.check()

    def agent(self, host: str) -> int:
        """The job's agent on a host: what sshd started."""
        return next(pid for pid in self.of_job(host) if comm(parent(pid)).startswith("sshd"))

    def ssh_client(self, host: str) -> int:
        """What connects the job's controller to a host."""
        (client,) = [
            pid for pid in self.of_job("h1") if comm(pid) == "ssh" and host.encode() in cmdline(pid).split(b"\0")
        ]
        return client


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def scene(company: Company) -> Iterator[Scene]:
    scene, cluster = Scene(company), company.lab
    yield scene
    for job in scene.jobs:
        job.end()
    for host in cluster.status():
        if host.state != "up":
            cluster.reboot(host.name)
        elif host.faults:
            cluster.heal(host.name)
    for commands in scene.everything().values():  # what a failed test has left
        for pid in commands:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    # A host whose cable was cut is not reachable at once: its neighbors must resolve its address again.
    for name in ("h2", "h3"):
        ssh = ["ssh", "-o", "ConnectTimeout=2", name, "true"]
        wait_until(f"the way to {name}", lambda ssh=ssh: cluster.run("h1", ssh, timeout=30).returncode == 0, 30)


# --- signals to the controller --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_to_the_controller_ends_every_process_after_the_grace_time(
    scene: Scene, number: signal.Signals
) -> None:
    job = scene.start()
    begin = time.monotonic()
    job.process.send_signal(number)
    scene.nothing_lives()
    assert time.monotonic() - begin > 1.5, "the ranks had their grace"
    done = job.wait(20)
    assert done.code == 128 + number, done.said
    limit = 4 if number == signal.SIGINT else 2  # 2 s after SIGINT, and as many after SIGTERM
    why = "Ctrl-C" if number == signal.SIGINT else number.name
    assert f"{why}: stopping all ranks (up to {limit} s" in done.err
    assert "Traceback" not in done.err
    assert "lost" not in done.err, "no host is lost when the user ends the job"
    scene.check()


def test_ctrl_c_twice_ends_every_process_at_once(scene: Scene) -> None:
    job = scene.start(grace=60)
    job.process.send_signal(signal.SIGINT)
    wait_until("the first word", lambda: "stopping all ranks" in job.err, 20, lambda: job.err)
    job.process.send_signal(signal.SIGINT)
    scene.nothing_lives()
    done = job.wait(20)
    assert done.code == 130, done.said
    assert "Traceback" not in done.err


def test_ctrl_c_while_hosts_are_still_importing_leaves_nothing(scene: Scene) -> None:
    (scene.shared / "who.py").write_text("print('should not run')")
    (scene.shared / "endless.py").write_text(
        "import time; time.sleep(1000)"
    )  # torch, before it, may be through by then
    scene.prepare(beside="h2,h3")
    job = HostJob(scene.lab, "h1", scene.shared, "--preload", "endless", "-H", "h2:1,h3:1", "who.py")
    scene.jobs.append(job)
    wait_until("agents and zygotes", lambda: all(len(scene.of_job(h)) >= 2 for h in ("h2", "h3")), 30, lambda: job.err)
    job.process.send_signal(signal.SIGINT)
    scene.nothing_lives()
    done = job.wait(20)
    assert done.code == 130, done.said
    assert done.out == ""
    assert "Traceback" not in done.err


@pytest.mark.torch
def test_ctrl_c_ends_forked_ranks_and_their_dataloader_workers(scene: Scene) -> None:
    job = scene.start(grace=1, forked=True, hosts="h3")
    job.process.send_signal(signal.SIGINT)
    scene.nothing_lives()
    assert job.wait(20).code == 130
    scene.check()


# --- sudden death of a part -----------------------------------------------------------------------------------


@pytest.mark.torch
@FRESH_AND_FORKED
def test_after_a_kill_of_the_controller_nothing_lives(scene: Scene, forked: bool, hosts: str) -> None:
    job = scene.start(forked=forked, hosts=hosts)
    job.process.kill()
    scene.nothing_lives()
    assert job.wait(20).code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    scene.check()


KILLED = "the job cannot continue on {}: the process that starts its ranks was killed"


def check_host_lost(scene: Scene, job: HostJob, sentence: str = "host h3 is lost: ") -> Done:
    """The job ends everywhere, and h3 is named as the host that was lost."""
    scene.nothing_lives()
    done = job.wait(20)
    assert done.code == 125, done.said
    assert re.search(f"^muster: {sentence}", done.err, re.MULTILINE), done.said
    scene.check()
    return done


def test_after_the_death_of_an_ssh_client_and_of_the_controller_nothing_lives(scene: Scene) -> None:
    job = scene.start()
    os.kill(scene.ssh_client("h3"), signal.SIGKILL)
    job.process.kill()
    scene.nothing_lives()


@pytest.mark.torch
@FRESH_AND_FORKED
def test_after_a_kill_of_an_agent_nothing_lives_and_the_host_is_named(scene: Scene, forked: bool, hosts: str) -> None:
    job = scene.start(forked=forked, hosts=hosts)
    os.kill(scene.agent("h3"), signal.SIGKILL)
    check_host_lost(scene, job)


@pytest.mark.torch
@FRESH_AND_FORKED
def test_after_a_kill_of_what_starts_the_ranks_nothing_lives_and_the_host_is_named(
    scene: Scene, forked: bool, hosts: str
) -> None:
    job = scene.start(forked=forked, hosts=hosts)
    agent = scene.agent("h3")

    def starters() -> list[int] | None:
        """The agent has more children as long as its host is being checked."""
        found = [pid for pid in scene.of_job("h3") if parent(pid) == agent and b"sleep" not in cmdline(pid)]
        return found if len(found) == 1 else None

    (starter,) = wait_until("one child of the agent", starters, 30)
    os.kill(starter, signal.SIGKILL)
    check_host_lost(scene, job, KILLED.format("h3"))


# --- network and power ----------------------------------------------------------------------------------------


def check_silence_is_told(done: Done) -> None:
    """A host was named on the screen long before it was given up, by the controller's own clock."""
    told = re.search(
        r"^muster: h3 has been silent for (\d+\.\d) s\n(.*\n)*muster: lost h3: no message", done.err, re.MULTILINE
    )
    assert told, done.said
    assert float(told[1]) < LEASE - 1, done.said


def test_a_short_hiccup_of_the_network_does_not_end_a_job(scene: Scene) -> None:
    job = scene.start()
    # Nothing goes to the host or comes from it while ssh is stopped. With a cable that is cut and repaired it would be
    # TCP's turn: it waits twice as long each time, and on a busy machine more than the 5 s might be over by then.
    client = scene.ssh_client("h3")
    os.kill(client, signal.SIGSTOP)
    wait_until("the report of the silence", lambda: "h3 has been silent" in job.err, 20, lambda: job.err)
    os.kill(client, signal.SIGCONT)
    wait_until("the host to be back", lambda: "h3 is back" in job.err, 20, lambda: job.err)
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGINT)
    job.process.send_signal(signal.SIGINT)
    scene.nothing_lives()


@pytest.mark.torch
@pytest.mark.parametrize("forked", [False, True], ids=["fresh", "forked"])
def test_after_a_cut_cable_nothing_lives_on_either_side_and_the_host_is_named(scene: Scene, forked: bool) -> None:
    # One of them with the default grace time, the longest that ranks get here.
    job = scene.start(grace=1 if forked else None, forked=forked, beside="h2")
    scene.lab.cut("h3")
    check_silence_is_told(check_host_lost(scene, job))


@pytest.mark.parametrize("fault", ["power_off", "crash"])
def test_after_the_sudden_end_of_a_host_nothing_lives_elsewhere_and_it_is_named(scene: Scene, fault: str) -> None:
    job = scene.start(grace=1, beside="h2")
    end: Callable[[str], None] = getattr(scene.lab, fault)
    end("h3")
    done = check_host_lost(scene, job)
    if fault == "power_off":  # a crash closes the connections, so it is heard at once
        check_silence_is_told(done)


def test_a_cut_between_controller_and_all_hosts_ends_the_job_on_all_of_them(scene: Scene) -> None:
    job = scene.start(grace=1, beside="")
    scene.lab.cut("h1")
    scene.nothing_lives()
    assert job.wait(20).code == 125


def test_a_laptop_that_is_closed_loses_its_job_on_every_host(scene: Scene) -> None:
    """The controller's host is frozen, and its connections stay open: only the missing heartbeat shows it."""
    job = scene.start(grace=1, beside="")
    frozen = time.monotonic()
    scene.lab.freeze("h1")
    wait_until(
        "the ranks to be gone",
        lambda: not (scene.of_job("h2") or scene.of_job("h3")),
        LIMIT,
        lambda: str(scene.everything()),
    )
    # 5 s of silence; some of them may have passed before, on a busy machine.
    assert time.monotonic() - frozen > 2, "a short hiccup of the network must not end a job"
    scene.lab.thaw("h1")
    done = job.wait(20)
    assert done.code == 125, done.said
    scene.nothing_lives()


def test_ctrl_c_while_a_host_does_not_answer_returns_at_once(scene: Scene) -> None:
    (scene.shared / "who.py").write_text("print('should not run')")
    scene.prepare(beside="")
    scene.lab.freeze("h3")
    job = HostJob(scene.lab, "h1", scene.shared, "--no-zygote", "-H", "h2:1,h3:1", "who.py")
    scene.jobs.append(job)
    wait_until("the agent of h2", lambda: scene.of_job("h2"), 30, lambda: job.err)
    job.process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    done = job.wait(30)
    assert time.monotonic() - begin < 30, "half of what an agent may take to come up"
    assert done.code == 130, done.said
    scene.lab.thaw("h3")
    scene.nothing_lives()


# --- on one machine, without ssh ------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["controller", "agent", "starter"])
def test_on_one_machine_nothing_outlives_the_death_of_any_part(scene: Scene, victim: str) -> None:
    job = scene.start(hosts="h1", beside="h1")

    def parts() -> list[list[int]] | None:
        """Controller, agent and starter; the agent has more children as long as its host is being checked."""
        ours = scene.of_job("h1")
        found = [[pid for pid in ours if b"muster\0run" in cmdline(pid)]]
        found.append([pid for pid in ours if parent(pid) in found[0]])
        found.append([pid for pid in ours if parent(pid) in found[1] and b"sleep" not in cmdline(pid)])
        return found if all(len(pids) == 1 for pids in found) else None

    (controller,), (agent,), (starter,) = wait_until("one process of each kind", parts, 30)
    os.kill({"controller": controller, "agent": agent, "starter": starter}[victim], signal.SIGKILL)
    scene.nothing_lives()
    done = job.wait(20)
    if victim != "controller":
        assert done.code == 125, done.said
        sentence = KILLED.format("h1") if victim == "starter" else "host h1 is lost: "
        assert re.search(f"^muster: {sentence}", done.err, re.MULTILINE), done.said
    scene.check()

"""A host that is about to go away: all ranks save, then a spare host takes over, and no step is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from elastic_jobs import FRESH, Running, Site, ended_well, find_on, hosts_of, with_add
from launching import MUSTER, PLAIN, Done
from waiting import ending, patience, wait_until

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.timeout(240)]

SLACK = 6.0
"""Seconds that a busy machine may add to a takeover."""

SERVICE = Path(__file__).parents[1] / "metadata_service.py"

SCRIPT = """\
import contextlib, itertools, json, os, signal, sys, time
ADD
signals, file, steps = [], sys.argv[1], int(sys.argv[2])
def is_free():
    return os.path.exists(file + ".free")
def begin():
    import muster
    return muster.init()
if "deaf" not in sys.argv:
    signal.signal(signal.SIGUSR1, lambda *_: signals.append(time.time()))
with begin() if "torch" in sys.argv else contextlib.nullcontext() as world:
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    step = first = json.load(open(file)) if os.path.exists(file) else 0
    add(1)
    said = {"attempt": attempt, "rank": rank, "host": os.uname().nodename, "time": time.time(), "step": step}
    print("BEGUN", json.dumps(said), flush=True)
    while step < steps or add(not is_free()):  # until the test frees the job, at the same step for all ranks
        time.sleep(0.05)
        leaves = add(len(signals) if "polls" not in sys.argv else world.deadline is not None)
        step += 1
        if rank == 0 and (leaves or (step % 20 == 0 and "deaf" in sys.argv)):
            time.sleep(1.0 if leaves else 0.0)
            while "saves-long" in sys.argv and not is_free():
                time.sleep(0.05)
            with open(file + ".tmp", "w") as saved:
                json.dump(step, saved)
            os.rename(file + ".tmp", file)
        if leaves:
            print("SAVED", step, len(signals), world.time_left() if world else "", flush=True)
            sys.exit(3 if "fails" in sys.argv else 0)
print("DONE", first, step, flush=True)
"""


@pytest.fixture(scope="module")
def lab(shared: Path) -> Iterator[Lab]:
    with Lab(4, bind=(shared,)) as lab:
        yield lab


@pytest.fixture
def site(lab: Lab, shared: Path) -> Iterator[Site]:
    (shared / "train.py").write_text(with_add(SCRIPT, shared))
    site = Site(lab, shared)
    yield site
    site.heal()


class Training(Running):
    """A run of the script with two ranks on h2 and h3, and h4 as a spare unless `options` say something else.

    It trains until the test waits for its end, and for some steps at least. Without `torch`, ranks are fresh.
    """

    def __init__(self, site: Site, *how: str, options: tuple[str, ...] = ("--spares", "1"), steps: int = 20) -> None:
        self.saved = site.shared / f"saved-{time.monotonic_ns()}"
        hosts = ("-H", "h2:1,h3:1,h4:1", *(() if "torch" in how else (FRESH,)))
        super().__init__(site.lab, site.shared, *options, *hosts, "train.py", str(self.saved), str(steps), *how)
        site.jobs.append(self)

    def free(self) -> None:
        """Let the job end, and finish its checkpoint if it `saves-long`."""
        self.saved.with_name(f"{self.saved.name}.free").touch()

    def wait(self, timeout: float = 100) -> Done:
        """Let it end, and wait for that."""
        self.free()
        return super().wait(timeout)

    def drain(self, *argv: str) -> subprocess.CompletedProcess[bytes]:
        """`muster drain` on the machine of the controller, to its end."""
        env = {**PLAIN, "XDG_STATE_HOME": str(self.state)}
        with self.lab.popen(
            "h1", [MUSTER, "drain", *argv], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            out, err = process.communicate(timeout=patience(100))
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def no_step_is_lost(self) -> None:
        """Every attempt began with the step that the one before had saved."""
        (step,) = set(re.findall(r"SAVED (\d+) ", self.out))
        assert {each["step"] for each in self.begun(1).values()} == {int(step)}, self.out


def test_drained_host_is_replaced_after_its_ranks_have_saved(site: Site) -> None:
    job = Training(site, "torch")
    job.wait_begun(0, 2)
    typed = time.time()
    drained = job.drain("train.py", "h2")
    assert drained.returncode == 0, drained.stderr
    assert b"muster: no rank runs on h2 after" in drained.stderr
    assert hosts_of(job.wait_begun(1, 2)) == {0: "h4", 1: "h3"}
    assert job.recovered(1, typed) < 2.5 + patience(SLACK)
    site.lab.crash("h2")  # nobody needs it any more
    done = job.wait()
    ended_well(done)
    job.no_step_is_lost()
    assert (
        "h2 is about to go away (muster drain); all ranks get SIGUSR1 and 60 s to save, then h4 takes over" in done.err
    )
    assert len(job.begun(1)) == 2
    assert not job.begun(2), "the loss of a drained host is no failure"


def test_two_notices_are_one_signal_and_an_earlier_deadline_counts(site: Site) -> None:
    job = Training(site, "torch", "polls", "saves-long", options=("--min-hosts", "1"))
    job.wait_begun(0, 3)
    pid = find_on(site.lab, "h3", "agent")
    os.kill(pid, signal.SIGTERM)
    job.wait_for(r"h3 has 30 s left \(its agent received SIGTERM\); all ranks get SIGUSR1")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(job.drain, "train.py", "h4", "--in", "20s")
        job.wait_for(r"h4 has \d+ s left \(muster drain\); the ranks have been signaled")
        job.free()
        drained = second.result()
    assert drained.returncode == 0, drained.stderr
    done = job.wait()
    ended_well(done)
    assert done.err.count("get SIGUSR1") == 1
    saved = re.findall(r"SAVED (\d+) (\d+) ([\d.]+)", done.out)
    assert {signals for _, signals, _ in saved} == {"1"}, done.out
    assert all(0 < float(left) <= 25 for _, _, left in saved), done.out
    assert "h2" in hosts_of(job.begun(1)).values()
    assert "h3" not in hosts_of(job.begun(1)).values()


def test_ranks_that_end_with_an_error_while_a_host_drains_have_saved(site: Site) -> None:
    job = Training(site, "fails")
    job.wait_begun(0, 2)
    assert job.drain("train.py", "h3", "--in", "1m").returncode == 0
    assert hosts_of(job.wait_begun(1, 2)) == {0: "h2", 1: "h4"}
    ended_well(job.wait())
    job.no_step_is_lost()


def test_script_that_ignores_the_notice_continues_from_its_last_checkpoint(site: Site) -> None:
    job = Training(site, "deaf")
    job.wait_begun(0, 2)
    drained = job.drain("train.py", "h3", "--in", "6s")
    assert drained.returncode == 0, drained.stderr
    begun = job.wait_begun(1, 2)
    assert hosts_of(begun) == {0: "h2", 1: "h4"}
    assert begun[0]["step"] in range(20, 10_000, 20), "the signal has killed no rank"
    done = job.wait()
    ended_well(done)
    assert "ranks 0, 1 did not end in time (ranks 0, 1 without a handler for SIGUSR1)" in done.err


def test_second_sigterm_ends_the_agent(site: Site) -> None:
    job = Training(site, "deaf")
    job.wait_begun(0, 2)
    pid = find_on(site.lab, "h3", "agent")
    os.kill(pid, signal.SIGTERM)
    job.wait_for(r"h3 has 30 s left \(its agent received SIGTERM\)")
    os.kill(pid, signal.SIGTERM)
    assert hosts_of(job.wait_begun(1, 2)) == {0: "h2", 1: "h4"}
    ended_well(job.wait())


def test_job_without_a_spare_ends_after_its_ranks_have_saved(site: Site) -> None:
    job = Training(site, options=())
    job.wait_begun(0, 3)
    refused = job.drain("train.py", "h3")
    assert refused.returncode == 2
    assert b"has no spare host that could replace h3" in refused.stderr
    assert b"--in 60s" in refused.stderr
    assert job.drain("train.py", "h3", "--in", "30s").returncode == 0
    done = job.wait()
    assert done.code == 143, done.said
    assert re.search(r"h3 has \d+ s left \(muster drain\), and the job has no spare host; all ranks ended", done.err)
    assert done.out.count("SAVED") == 3


def test_bad_use_of_drain_is_one_sentence(site: Site) -> None:
    job = Training(site, "deaf")
    job.wait_begun(0, 2)
    strange = job.drain("train.py", "h9")
    assert strange.returncode == 2
    assert re.match(rb"error: host h9 is not in job \S+\n\nhint: its hosts are h2, h3, h4\n$", strange.stderr)
    assert job.drain("train.py", "h4").returncode == 0
    job.wait_for("h4 is about to go away .*; no rank runs there, so it is no longer a spare")
    again = job.drain("train.py", "h4")
    assert again.returncode == 0
    assert again.stderr == b"muster: h4 is already drained (muster drain); no rank runs there\n"
    spareless = job.drain("train.py", "h2")
    assert b"has no spare host that could replace h2" in spareless.stderr
    ended_well(job.wait())
    over = job.drain("train.py", "h2")
    assert over.returncode == 2
    assert b"finished with exit code 0" in over.stderr


def test_command_that_announces_the_end_of_a_host_drains_it(site: Site) -> None:
    command = f"test -e {site.shared}/leave-$(hostname) && echo 25"
    job = Training(site, options=("--spares", "1", "--notice", command))
    job.wait_begun(0, 2)
    (site.shared / "leave-h3").touch()
    assert hosts_of(job.wait_begun(1, 2)) == {0: "h2", 1: "h4"}
    done = job.wait()
    ended_well(done)
    job.no_step_is_lost()
    assert re.search(r"muster: h3 has 2[45] s left \(according to --notice test -e ", done.err)


def test_command_that_does_not_exist_is_reported_once(site: Site) -> None:
    job = Training(site, options=("--notice", "no-such-command"), steps=120)
    done = job.wait()
    ended_well(done)
    (why,) = re.findall(r"muster: h\d: could not determine whether the host is about to go away \((.*)\)", done.err)
    assert why == "`no-such-command` ended with exit code 127: /bin/sh: 1: no-such-command: not found"


def _leaves(cloud: str) -> dict[str, Any]:
    """What the metadata service of a machine knows that is about to go away."""
    if cloud == "aws":
        then = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 120))
        return {"action": json.dumps({"action": "terminate", "time": then})}
    if cloud == "gcp":
        return {"preempted": "TRUE"}
    event = {"EventType": "Preempt", "ResourceType": "VirtualMachine", "EventStatus": "Scheduled", "EventId": "1"}
    then = formatdate(time.time() + 30, usegmt=True)
    others = {**event, "Resources": ["train_6"], "NotBefore": then}
    return {"events": {"Events": [others, {**event, "Resources": ["train_7"], "NotBefore": then}]}}


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_spot_interruption_of_a_cloud_drains_the_host(site: Site, cloud: str) -> None:
    known = site.shared / f"{cloud}.json"
    known.write_text("{}")
    for host in ("h2", "h3", "h4"):
        site.lab.run(host, ["ip", "addr", "replace", "169.254.169.254/32", "dev", "lo"], timeout=20)
    nothing = site.shared / "nothing.json"
    nothing.write_text("{}")
    with (
        ending(site.lab.popen("h2", [sys.executable, str(SERVICE), cloud, str(nothing)])),
        ending(site.lab.popen("h3", [sys.executable, str(SERVICE), cloud, str(known)])),
        ending(site.lab.popen("h4", [sys.executable, str(SERVICE), cloud, str(nothing)])),
    ):
        job = Training(site, options=("--spares", "1", "--notice", cloud))
        job.wait_begun(0, 2)
        draft = site.shared / "draft.json"
        draft.write_text(json.dumps(_leaves(cloud)))
        draft.replace(known)
        assert hosts_of(job.wait_begun(1, 2)) == {0: "h2", 1: "h4"}
        done = job.wait()
    ended_well(done)
    job.no_step_is_lost()
    assert re.search(r"muster: h3 has \d+ s left \((AWS|Google Cloud|Azure) ", done.err)
    assert "could not determine" not in done.err


def test_finished_script_is_not_restarted(site: Site) -> None:
    (site.shared / "finish.py").write_text(
        "import os, signal, time\nsignals = []\nsignal.signal(signal.SIGUSR1, lambda *_: signals.append(1))\n"
        "print('BEGUN', flush=True)\nwhile os.environ['RANK'] == '0' and not signals: time.sleep(0.05)\n"
    )
    job = Running(site.lab, site.shared, "--spares", "1", FRESH, "-H", "h2:1,h3:1,h4:1", "finish.py")
    wait_until("rank 1 to end", lambda: job.out.count("BEGUN") == 2 and "rank 1" in _ended(job), 60)
    env = {**PLAIN, "XDG_STATE_HOME": str(job.state)}
    with ending(site.lab.popen("h1", [MUSTER, "drain", "finish.py", "h2"], env=env)) as process:
        assert process.wait(patience(60)) == 0
    done = job.wait()
    ended_well(done)
    assert done.out.count("BEGUN") == 2, "every rank had a chance to end by itself"


def _ended(job: Running) -> str:
    """The ranks that have ended with exit code 0, according to the state that the job keeps on disk."""
    found = list((job.state / "muster" / "jobs").glob("*/state.json"))
    state = json.loads(found[0].read_text()) if found else {"ranks": []}
    return " ".join(f"rank {each['rank']}" for each in state["ranks"] if each["state"] == "ended")


def test_recipe_saves_and_continues_without_losing_a_step(site: Site) -> None:
    saved = site.shared / "mnist"
    recipe = ("-m", "muster.recipes.mnist", "--synthetic", "5000", "--batch_size", "10", "--epochs", "1")
    options = ("--model_dir", str(saved), "--resume", "--save_every", "0", "--log_every", "10")
    how = ("--spares", "1", "--env", "OMP_NUM_THREADS=1", "--preload", "torch._dynamo", "-H", "h2:1,h3:1,h4:1")
    job = Running(site.lab, site.shared, *how, *recipe, *options)
    wait_until("the first steps", lambda: "step 10 " in job.out, 100, lambda: f"{job.out}\n{job.err}")
    env = {**PLAIN, "XDG_STATE_HOME": str(job.state)}
    # On a busy machine, the training could be over before the command has reached the job.
    ranks = [pid for pid, line in site.lab.processes("h2") if "muster.recipes.mnist" in line]
    assert ranks
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    with ending(site.lab.popen("h1", [MUSTER, "drain", "last", "h2"], env=env)) as process:
        wait_until("the notice", lambda: "h2 is about to go away" in job.err, 0, lambda: job.err)
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)
        assert process.wait(patience(100)) == 0
    done = job.wait()
    ended_well(done)
    (left,) = re.findall(r"saved step (\d+), because a host is about to go away", done.out)
    (resumed,) = re.findall(r"resumed at step (\d+)", done.out)
    assert resumed == left, done.out
    assert "accuracy: " in done.out

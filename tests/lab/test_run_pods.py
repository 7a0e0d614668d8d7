"""`muster run --pods`: in running pods of Kubernetes, through the real kubectl and a stand-in for the API server.

The user, kubectl and the API server are in h1, one pod runs in each of h2 and h3.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kube import KubeCluster
from launching import Done, HostJob
from waiting import patience, wait_until

from muster.lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.getuid() != 0, reason="pods need a lab started as root"),
]

# Prints numbered lines until it is asked to end.
LINES = """
import os, sys, time
number = 0
while not os.path.exists(sys.argv[1]):
    print("line", number, flush=True)
    number += 1
    time.sleep(0.02)
print("total", number, flush=True)
"""

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total.item()), flush=True)
dist.destroy_process_group()
"""

PLAIN_RANKS = ("--nproc", "1", "--no-zygote", "--no-check")
"""For scripts that do not use torch."""


class Pods:
    """Two pods with the label app=train, and jobs in them."""

    def __init__(self, kube: KubeCluster, shared: Path) -> None:
        self.kube = kube
        self.shared = shared
        self.stop = shared / f"stop-{time.monotonic_ns()}"
        (shared / "lines.py").write_text(LINES)
        (shared / "reduce.py").write_text(ALL_REDUCE)

    def add(self, *names: str, **settings: object) -> None:
        """Add pods and wait until they run."""
        for name in names:
            self.kube.add_pod(name, labels={"app": "train"}, **settings)  # pyright: ignore[reportArgumentType]

    @contextmanager
    def job(self, *argv: str, command: str = "run") -> Iterator[HostJob]:
        """A command of Muster in h1; whatever happens, it ends."""
        job = HostJob(self.kube.lab, "h1", self.shared, *argv, command=command, **self.kube.env)
        try:
            yield job
        finally:
            job.end()

    def run(self, *argv: str, command: str = "run") -> Done:
        """The same, until it has ended."""
        with self.job(*argv, command=command) as job:
            return job.wait()

    @contextmanager
    def lines(self, *options: str) -> Iterator[HostJob]:
        """A job that prints lines until `finish`, with both ranks running."""
        with self.job(*options, *PLAIN_RANKS, "lines.py", self.stop.name) as job:
            for rank in (0, 1):
                wait_until("lines", lambda rank=rank: re.search(rf" {rank}\] line 20\n", job.out), said=lambda: job.err)
            yield job

    def finish(self, job: HostJob) -> Done:
        """Let the ranks end."""
        self.stop.touch()
        return job.wait()


@pytest.fixture
def pods(kube: KubeCluster, shared: Path) -> Pods:
    return Pods(kube, shared)


def assert_complete(done: Done) -> None:
    """No line is missing, none came twice, and the logs agree with the screen."""
    assert done.code == 0, done.said
    for rank in (0, 1):
        lines = done.lines(rank)
        total = int(lines[-1].removeprefix("total "))
        assert lines[:-1] == [f"line {number}" for number in range(total)], done.err
        assert done.log(rank).decode().split("\n")[:-1] == lines


def wait_for(job: HostJob, words: str) -> None:
    """Until a job has said something, given as a pattern."""
    wait_until(words, lambda: re.search(words, job.err), patience(60), lambda: job.err)


def processes(kube: KubeCluster, name: str) -> list[str]:
    """The command lines of a pod's processes, besides its own."""
    found = kube.lab.processes(kube.host_of(name))
    return [line for line in map(str, found) if "python" in line]


@pytest.mark.torch
def test_ranks_in_pods_selected_by_a_label_meet(pods: Pods) -> None:
    pods.add("train-0", "train-1")
    done = pods.run("--pods", "app=train", "--nproc", "2", "reduce.py")
    assert done.code == 0, done.said
    assert re.findall(r"\[train-[01] \d\] sum 4", done.out) != []
    assert "muster: --pods app=train in namespace default: train-0, train-1\n" in done.err


def test_pods_given_by_name_keep_their_order(pods: Pods) -> None:
    pods.add("train-0", "train-1")
    pods.stop.touch()
    done = pods.run("-H", "pod/train-1,pod/train-0", *PLAIN_RANKS, "lines.py", pods.stop.name)
    assert "[train-1 0] total 0" in done.out, done.said


def test_a_locked_down_pod_needs_nothing(pods: Pods) -> None:
    security = {"runAsNonRoot": True, "runAsUser": 1000, "readOnlyRootFilesystem": True}
    pods.add("train-0", security={**security, "capabilities": {"drop": ["ALL"]}})
    pods.stop.touch()
    done = pods.run("--pods", "app=train", "--sync", *PLAIN_RANKS, "lines.py", pods.stop.name)
    assert done.code == 0, done.said


def test_one_kubectl_serves_all_pods_and_ends_with_the_job(pods: Pods) -> None:
    pods.add("train-0", "train-1")
    with pods.lines("--pods", "app=train") as job:
        kubectls = [
            line for line in map(str, pods.kube.lab.processes("h1")) if "kubectl" in line and "keeper" not in line
        ]
        assert len(kubectls) == 1, kubectls
        assert_complete(pods.finish(job))
    assert [line for line in map(str, pods.kube.lab.processes("h1")) if "kubectl" in line] == []


def test_the_job_outlives_a_restart_of_the_api_server(pods: Pods) -> None:
    pods.add("train-0", "train-1")
    with pods.lines("--pods", "app=train") as job:
        pods.kube.kill_api_server()
        wait_for(job, "the API server does not answer")
        time.sleep(8)  # longer than an agent behind ssh waits for its controller
        pods.kube.start_api_server()
        wait_for(job, "train-0 is back after")
        wait_for(job, "train-1 is back after")
        assert_complete(pods.finish(job))


def test_the_job_outlives_restarts_of_kubelet_and_containerd_on_a_node(pods: Pods) -> None:
    pods.add("train-0", "train-1")

    def execs() -> int:
        return sum("/exec" in str(each) for each in pods.kube.api.requests)

    with pods.lines("--pods", "app=train") as job:
        for restart in (pods.kube.restart_kubelet, pods.kube.restart_containerd):
            before = execs()
            restart("train-1")
            wait_until("another exec", lambda before=before: execs() > before)
            time.sleep(2)  # longer than an agent behind ssh needs to see that its controller has closed the connection
        assert_complete(pods.finish(job))


def test_nothing_is_left_in_the_pods_when_the_controller_is_killed(pods: Pods) -> None:
    pods.add("train-0", "train-1")
    with pods.lines("--pods", "app=train") as job:
        job.process.send_signal(signal.SIGKILL)
        for name in ("train-0", "train-1"):
            wait_until("an empty pod", lambda name=name: not processes(pods.kube, name), patience(5))
        wait_until("no kubectl", lambda: "kubectl" not in str(pods.kube.lab.processes("h1")))


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ("delete_pod", "its pod was deleted"),
        ("preempt", "its pod was preempted (default-scheduler: preempting to accommodate a higher priority pod)"),
        ("evict", "its pod was evicted, as for a drain of node node-h3 (Eviction API: evicting)"),
        ("evict_by_kubelet", 'its pod was evicted (Usage of EmptyDir volume "s" exceeds the limit "10Mi")'),
        ("oom_kill", "its container main reached its memory limit (OOMKilled)"),
    ],
)
def test_the_reason_for_a_lost_pod_is_reported(pods: Pods, event: str, reason: str) -> None:
    pods.add("train-0", "train-1", terminationGracePeriodSeconds=1)
    with pods.lines("--pods", "app=train") as job:
        getattr(pods.kube, event)("train-1")
        done = job.wait()
    assert done.code == 125, done.said
    assert f"muster: lost train-1: {reason}\n" in done.err
    assert "ssh" not in done.err


def test_a_lost_node_is_a_lost_host_and_a_spare_pod_replaces_it(cluster: Lab, pods: Pods) -> None:
    pods.add("train-0", "train-1")
    with pods.lines("--pods", "app=train", "--min-hosts", "1", "--lost-after", "3s") as job:
        pods.kube.cut_node("train-1")
        try:
            wait_for(job, "lost train-1: no message from it for 3 s; its node node-h3 is down or hung")
            wait_until("a second attempt", lambda: "restart 1 of 20" in job.err)
            done = pods.finish(job)
        finally:
            pods.kube.heal_node("train-1")
    assert done.code == 0, done.said


def test_a_pod_that_is_deleted_drains_first(pods: Pods) -> None:
    pods.add("train-0", "train-1", terminationGracePeriodSeconds=4)
    with pods.lines("--pods", "app=train", "--min-hosts", "1") as job:
        pods.kube.preempt("train-1")
        wait_for(job, r"train-1 has 4 s left \(its pod was preempted .*; all ranks get SIGUSR1 and 3 s to save")
        wait_until(
            "a second attempt",
            lambda: "muster: planned restart (train-1: its pod was preempted" in job.err,
            said=lambda: job.err,
        )
        done = pods.finish(job)
    assert done.code == 0, done.said


def test_a_pod_that_cannot_be_scheduled_is_waited_for_and_explained(pods: Pods) -> None:
    pods.add("train-0", "train-1")
    pods.kube.add_pod("train-2", labels={"app": "train"}, wait=False)
    with pods.job("--pods", "app=train", *PLAIN_RANKS, "lines.py", pods.stop.name) as job:
        wait_for(job, r"2 of 3 hosts up, waiting for train-2 \(Kubernetes cannot schedule it \(0/2 nodes are available")


def test_an_image_that_does_not_exist_is_reported(pods: Pods) -> None:
    pods.add("train-0")
    pods.kube.pods.missing_images.add("registry.example/none:1")
    pods.kube.add_pod("train-1", labels={"app": "train"}, image="registry.example/none:1", wait=False)
    done = pods.run("--pods", "app=train", *PLAIN_RANKS, "lines.py", pods.stop.name)
    assert done.code == 125
    assert "error: train-1: its image registry.example/none:1 could not be pulled" in done.err, done.said


def test_a_missing_permission_is_reported_with_the_rule(pods: Pods) -> None:
    pods.add("train-0")
    for verb in ("get", "create"):
        pods.kube.deny(verb, "pods/exec")
    done = pods.run("--pods", "app=train", *PLAIN_RANKS, "lines.py", pods.stop.name)
    assert done.code == 125
    assert "train-0: Kubernetes does not allow you to run commands in this pod" in done.err, done.said
    assert '{apiGroups: [""], resources: ["pods/exec"], verbs: [create, get]}' in done.err


def test_a_role_without_watch_runs_jobs(pods: Pods) -> None:
    pods.add("train-0")
    pods.kube.deny("watch", "pods")
    pods.stop.touch()
    done = pods.run("--pods", "app=train", *PLAIN_RANKS, "lines.py", pods.stop.name)
    assert done.code == 0, done.said


BAD = [
    (("--pods", "app=none"), "error: no pod matches --pods app=none in namespace default"),
    (("-H", "pod/none"), "error: no pod named none in namespace default"),
    (("--pods", "app=train", "-c", "side"), "error: -c side: pod train-0 has no such container"),
    (("-H", "pod/train-0,box"), "error: -H: pods and other hosts (box) cannot run the same job"),
    (("-n", "space"), "error: -n has no effect without pods"),
    (("--pods", "app=train", "--python", "/none/python"), "train-0: its container main has no /none/python"),
    (("--pods", "app=train", "--image", "x"), "error: --image: pods already run in a container"),
    (("--pods", "app=train", "-H", "a"), "error: -H and --pods cannot be used together"),
    (("-H", "pod/a/b"), "give the namespace of pods with -n"),
]


def test_bad_input_gets_one_sentence(pods: Pods) -> None:
    pods.add("train-0")
    for options, sentence in BAD:
        done = pods.run(*options, *PLAIN_RANKS, "lines.py", pods.stop.name)
        assert done.code in (2, 125), done.said
        assert sentence in done.err
        assert "Traceback" not in done.err


def test_check_reports_permissions_a_small_dev_shm_and_missing_gpus(pods: Pods, shared: Path, cluster: Lab) -> None:
    with KubeCluster(cluster, shared / "kube-gpus", gpus=2) as kube:
        there = Pods(kube, shared)
        kube.add_pod("train-0", labels={"app": "train"}, gpus=2)
        kube.deny("watch", "pods")
        done = there.run("--pods", "app=train", command="check")
    assert done.code == 3, done.said
    assert "no permission to watch pods in namespace default" in done.out
    assert "train-0: its pod requests 2 GPUs, but only 0 are visible in it" in done.out
    assert "/dev/shm is only 64 MB" in done.out
    assert "emptyDir with `medium: Memory`" in done.out
    assert "ssh" not in done.out

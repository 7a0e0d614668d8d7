"""The stand-in for Kubernetes does to the real kubectl what a real cluster was seen to do."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kube import KubeCluster
from waiting import ending, patience, wait_until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.getuid() != 0, reason="pods need a lab started as root"),
]


@pytest.fixture
def modern_kubectl(kube: KubeCluster) -> None:
    """Skip where `kubectl exec` speaks only SPDY and `kubectl create` wants the whole schema, as on Debian 12."""
    if kube.kubectl_minor < 31:
        pytest.skip("needs kubectl 1.31 or newer")


def popen(kube: KubeCluster, *argv: str) -> subprocess.Popen[bytes]:
    """A kubectl whose streams a test holds."""
    pipe = subprocess.PIPE
    env = {**os.environ, **kube.env}
    return kube.lab.popen("h1", ["kubectl", *argv], env=env, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)


def test_pods_are_listed_selected_and_watched(kube: KubeCluster) -> None:
    """`get`, selectors, and a watch that sees a pod's end before its object is gone."""
    kube.add_pod("train-0", labels={"app": "train"})
    kube.add_pod("other", labels={"app": "web"})
    assert kube.kubectl("get", "pods", "-l", "app in (train)", "-o", "name").stdout == "pod/train-0\n"
    assert "train-0   1/1     Running" in kube.kubectl("get", "pods").stdout
    with ending(popen(kube, "get", "pods", "-l", "app=train", "-w", "-o", "json")) as watch:
        assert watch.stdout
        seen = b""
        kube.evict("train-0")
        while b"EvictionByEvictionAPI" not in seen:
            data = watch.stdout.read(1 << 16)
            assert data, seen
            seen += data


@pytest.mark.usefixtures("modern_kubectl")
def test_exec_carries_bytes_and_exit_codes(kube: KubeCluster) -> None:
    """Binary data both ways, an end of stdin, exit codes, signals as 128 + N, and a program that does not exist."""
    kube.add_pod("a")
    data = bytes(range(256)) * 4096
    with ending(popen(kube, "exec", "-i", "a", "--", "cat")) as process:
        out, _ = process.communicate(data, timeout=patience(60))
    assert out == data
    assert kube.kubectl("exec", "a", "--", "sh", "-c", "exit 42").returncode == 42
    assert kube.kubectl("exec", "a", "--", "sh", "-c", "kill -9 $$").returncode == 137
    missing = kube.kubectl("exec", "a", "--", "nonesuch")
    assert missing.returncode == 1
    assert 'exec: "nonesuch": executable file not found in $PATH' in missing.stderr
    assert kube.kubectl("exec", "a", "--", "sh", "-c", "echo $PPID $(hostname) $PWD").stdout == "0 a /\n"


@pytest.mark.usefixtures("modern_kubectl")
def test_a_killed_api_server_ends_kubectl_but_not_the_command(kube: KubeCluster, shared: Path) -> None:
    """The command gets an end of stdin; the restarted server knows all pods."""
    kube.add_pod("a")
    mark = shared / f"eof-{time.monotonic_ns()}"
    command = f"echo up; cat; sleep 0.3; echo still here; touch {mark}"
    with ending(popen(kube, "exec", "-i", "a", "--", "sh", "-c", command)) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"up\n"
        kube.kill_api_server()
        assert process.wait(patience(30)) == 1
        assert b"close 1006" in process.stderr.read()
    wait_until("the command to run on", mark.exists)
    refused = kube.kubectl("get", "pods")
    assert "refused" in refused.stderr
    kube.start_api_server()
    assert kube.kubectl("get", "pods", "-o", "name").stdout == "pod/a\n"


@pytest.mark.usefixtures("modern_kubectl")
def test_a_restarted_kubelet_ends_kubectl_with_0(kube: KubeCluster) -> None:
    """Exit code 0 proves nothing."""
    kube.add_pod("a")
    with ending(popen(kube, "exec", "-i", "a", "--", "sh", "-c", "echo up; sleep 60")) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        kube.restart_kubelet("a")
        assert process.wait(patience(30)) == 0


@pytest.mark.usefixtures("modern_kubectl")
def test_exec_ends_when_its_children_have_closed_their_output(kube: KubeCluster) -> None:
    """A child that holds stdout keeps the stream open after the command has ended."""
    kube.add_pod("a")
    start = time.monotonic()
    done = kube.kubectl("exec", "a", "--", "sh", "-c", "sleep 2 & exit 3")
    assert done.returncode == 3
    assert time.monotonic() - start > 1.8


def test_only_process_1_gets_sigterm(kube: KubeCluster) -> None:
    """A deleted pod's process 1 gets SIGTERM; everything else in it only the SIGKILL after the grace period."""
    loop = "while :; do sleep 0.1; done"
    script = f"trap 'echo got TERM' TERM; (trap 'echo child got TERM' TERM; echo ready; {loop}) & {loop}"
    kube.add_pod("a", command=("sh", "-c", script), restart="Never")
    output = kube.pods.running["default", "a"].containers["main"].output
    wait_until("both traps", lambda: b"ready" in output)  # process 1 without one ignores SIGTERM
    kube.delete_pod("a", grace=1)
    wait_until("SIGTERM", lambda: b"got TERM" in output)
    kube.wait_until_gone("a")
    assert b"child" not in output
    assert kube.lab.processes("h2") == []


def _waiting(pod: dict[str, Any]) -> str:
    return pod["status"]["containerStatuses"][0]["state"].get("waiting", {}).get("reason", "")


def test_every_reason_is_where_a_real_cluster_has_it(kube: KubeCluster) -> None:
    """OOMKilled, Evicted, preempted, ImagePullBackOff and Unschedulable."""

    def until(name: str, check: Callable[[dict[str, Any]], object]) -> None:
        wait_until(f"{name} to change", lambda: check(kube.pod(name) or {}), said=lambda: str(kube.pod(name)))

    kube.add_pod("memory", restart="Never")
    kube.oom_kill("memory")
    until("memory", lambda pod: pod["status"]["phase"] == "Failed")
    state = (kube.pod("memory") or {})["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["reason"], state["exitCode"]) == ("OOMKilled", 137)
    kube.add_pod("disk")
    kube.evict_by_kubelet("disk")
    assert (kube.pod("disk") or {})["status"]["reason"] == "Evicted"
    kube.pods.missing_images.add("absent:1")
    kube.add_pod("image", image="absent:1", wait=False)
    until("image", lambda pod: _waiting(pod) == "ImagePullBackOff")
    kube.add_pod("gpu", gpus=99, wait=False)
    until("gpu", lambda pod: "Insufficient nvidia.com/gpu" in str(pod["status"]))
    kube.add_pod("low", terminationGracePeriodSeconds=1)
    kube.preempt("low")
    assert "PreemptionByScheduler" in str((kube.pod("low") or {})["status"])
    kube.wait_until_gone("low")


def test_missing_permissions_are_refused_and_reported(kube: KubeCluster) -> None:
    """403 for the request, `no` from `auth can-i`."""
    kube.add_pod("a")
    kube.deny("list", "pods")
    refused = kube.kubectl("get", "pods")
    assert refused.returncode == 1
    assert 'pods is forbidden: User "tester" cannot list resource "pods"' in refused.stderr
    assert kube.kubectl("auth", "can-i", "list", "pods").stdout.startswith("no")
    assert kube.kubectl("auth", "can-i", "create", "pods", "--subresource=exec").stdout.startswith("yes")


JOB = """\
apiVersion: v1
kind: Secret
metadata: {name: token}
stringData: {token: sesame}
---
apiVersion: batch/v1
kind: Job
metadata: {name: two}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      subdomain: two
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: train:1
        command: [sh, -c, 'COMMAND']
        volumeMounts: [{name: token, mountPath: /var/run/secrets/job}]
      volumes: [{name: token, secret: {secretName: token}}]
"""


def create_job(kube: KubeCluster, command: str) -> None:
    """Create the Job with a command."""
    done = kube.kubectl("create", "-f", "-", input=JOB.replace("COMMAND", command))
    assert done.returncode == 0, done.stderr


def condition(kube: KubeCluster, kind: str) -> str:
    """The message of a condition of the Job."""
    path = f'jsonpath={{.status.conditions[?(@.type=="{kind}")].reason}}'
    return kube.kubectl("get", "job", "two", "-o", path).stdout


@pytest.mark.usefixtures("modern_kubectl")
def test_an_indexed_job_runs_a_pod_per_index(kube: KubeCluster) -> None:
    """Index, hostname, Secret and the other pod's name are there; logs stay after its end; delete removes all."""
    look_up = "until getent hosts two-1.two; do sleep 0.1; done"
    create_job(kube, f"cat /var/run/secrets/job/token; echo $JOB_COMPLETION_INDEX $(hostname); {look_up}")
    wait = kube.kubectl("wait", "--for=condition=complete", "job/two", "--timeout=60s")
    assert wait.returncode == 0, wait.stderr
    pods = kube.kubectl("get", "pods", "-l", "job-name=two", "-o", "name").stdout.split()
    assert [name[:10] for name in pods] == ["pod/two-0-", "pod/two-1-"]
    assert kube.kubectl("logs", pods[1]).stdout.startswith("sesame1 two-1\n")
    assert kube.kubectl("delete", "job", "two").returncode == 0
    wait_until("all pods to be gone", lambda: not kube.kubectl("get", "pods", "-o", "name").stdout)


@pytest.mark.usefixtures("modern_kubectl")
def test_one_failed_pod_deletes_the_others_with_their_logs(kube: KubeCluster) -> None:
    """Only the failed pod is left when the Job is Failed."""
    create_job(kube, "sleep 1; [ $JOB_COMPLETION_INDEX = 0 ] || exit 7; sleep 60")
    wait_until("the job to fail", lambda: condition(kube, "Failed") == "BackoffLimitExceeded")
    pods = kube.kubectl("get", "pods", "-o", "name").stdout.split()
    assert len(pods) == 1
    assert pods[0].startswith("pod/two-1-")


def test_a_locked_down_pod_has_no_rights(kube: KubeCluster) -> None:
    """No root, no capabilities, nothing to write to but /dev/shm."""
    write = "touch /tmp/x || touch /run/x || touch /x && echo writable; touch /dev/shm/x && echo shm"
    script = f"id -u; grep CapEff /proc/self/status; {write}; sleep 60"
    kube.add_pod("a", command=("sh", "-c", script), security={"runAsNonRoot": True, "readOnlyRootFilesystem": True})
    output = kube.pods.running["default", "a"].containers["main"].output
    wait_until("its output", lambda: b"shm" in output)
    assert output.startswith(b"1000\nCapEff:\t0000000000000000\n")
    assert b"writable" not in output


@pytest.mark.usefixtures("modern_kubectl")
def test_a_cut_node_is_silent(kube: KubeCluster) -> None:
    """Nothing arrives from it; a new exec fails after a while; the API shows it only when controllers report it."""
    kube.add_pod("a")
    try:
        with ending(popen(kube, "exec", "-i", "a", "--", "sh", "-c", "while :; do echo x; sleep 0.1; done")) as process:
            assert process.stdout
            assert process.stdout.readline() == b"x\n"
            kube.cut_node("a")
            assert "no route to host" in kube.kubectl("exec", "a", "--", "true").stderr
            kube.report_lost_node("a")
            assert process.poll() is None
        nodes = kube.kubectl("get", "nodes", "-o", "json").stdout
        assert "Kubelet stopped posting node status." in nodes
    finally:
        kube.heal_node("a")

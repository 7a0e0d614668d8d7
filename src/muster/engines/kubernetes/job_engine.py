"""The engine inside the pods of a Kubernetes Job: each pod runs `muster run`, and the first one runs the controller."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

from muster.engines.allocation import Allocation
from muster.engines.engine import (
    DIALING_AGENT,
    AgentSpec,
    Choice,
    Engine,
    KnownPort,
    Launch,
    StartCommand,
    can_lack_hosts,
)
from muster.engines.kubernetes.pod_environment import JOB_ID, TOKEN, PodJob, read_pod_job, token_in
from muster.errors import MusterError, UsageError
from muster.hosts import Host
from muster.job import JOB_ID as VALID_JOB_ID
from muster.spec import RunSpec

POD_LIMIT = 1800.0
"""Seconds in which all pods must have started: a large image is pulled meanwhile, and nodes may have to be added."""


class KubernetesJobEngine(Engine):
    """Pods of an Indexed Job, a JobSet, a PyTorchJob or a TrainJob, all of which run the same `muster run`."""

    name = "kubernetes-job"
    key_from = ("PET_NODE_RANK", "JOB_COMPLETION_INDEX", "RANK")
    unset = (TOKEN,)  # ranks need not know it
    exits_with_job = True
    sigterm_is_notice = True
    missing_hint = "`kubectl get pods` shows pods that are Pending or have failed, and `kubectl describe pod` why"
    job_kind = "Kubernetes Job"
    more_memory = "request more memory (`muster submit --k8s --mem 64G`, or `resources` of the container)"
    more_cpus = "`resources.requests.cpu: 8` of the container"
    outside_job = (
        "not inside a pod of a Job with several pods",
        "set PET_NNODES to the number of pods, or use `muster submit --k8s`",
    )

    def detect(self, env: Mapping[str, str]) -> Allocation | None:
        """The Job of this pod."""
        pods = this_pod(env)
        if pods is None:
            return None
        job = env.get(JOB_ID, "")
        return Allocation(
            kind="Kubernetes Job",
            id=pods.name,
            hosts=tuple(Host(name=name, slots=pods.nproc) for name in pods.pods),
            job_id=job if VALID_JOB_ID.fullmatch(job) else "",
        )

    def launch(self, choice: Choice, spec: RunSpec, folder: str) -> Launch:
        """The agent of this pod; those of the other pods dial in."""
        pods = this_pod(os.environ)
        if pods is None:
            raise MusterError("--engine kubernetes-job needs a Job with several pods")
        if pods.index != 0 or not spec.target:
            raise UsageError(
                f"only `muster run` runs on all pods of {choice.allocation}, started in each of them",
                hint="add `--engine local` to use this pod alone",
            )
        if len(choice.hosts) < pods.nodes:
            raise UsageError(f"-H names {len(choice.hosts)} of {pods.nodes} pods", hint="omit -H to use all pods")
        own, *others = (
            AgentSpec(host=host, name=host.name, key=str(index), inherits=True, here=index == 0)
            for index, host in enumerate(choice.hosts)
        )
        argv = (spec.python_on(own.host) or sys.executable, "-c", DIALING_AGENT)
        return Launch(
            engine=self,
            commands=(
                StartCommand(argv=argv, agents=(own,), remote=False),
                *(StartCommand(argv=(), agents=(agent,)) for agent in others),
            ),
            channel="dial-back",
            pull_limit=POD_LIMIT,
            can_lack_hosts=can_lack_hosts(spec),
            known_port=KnownPort(port=pods.port, secret=token_in(os.environ)),
        )

    def login(self, command: StartCommand) -> tuple[str, ...] | None:
        """The names of the other pods have a suffix that this pod does not know."""
        return () if command.argv else None

    def usual_reason(self, number: int) -> str | None:
        """SIGTERM comes before Kubernetes kills a pod."""
        return "the pod was deleted, evicted or preempted" if number == 15 else None


def this_pod(env: Mapping[str, str]) -> PodJob | None:
    """The place of this pod in its Job; None elsewhere."""
    try:
        with open("/etc/hosts", encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 20)
    except OSError:
        text = ""
    return read_pod_job(env, socket.gethostname(), text)

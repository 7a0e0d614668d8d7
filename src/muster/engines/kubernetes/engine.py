"""The Kubernetes engine: one `exec` in each of some running pods; nothing is installed in them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from muster.engines.engine import (
    PIPED_AGENT,
    AgentSpec,
    Choice,
    Engine,
    Launch,
    StartCommand,
    can_lack_hosts,
)
from muster.errors import HostError, MusterError, UsageError
from muster.hosts import Host
from muster.spec import RunSpec
from muster.text import names

if TYPE_CHECKING:
    from muster.engines.kubernetes.pods import Pod
    from muster.engines.kubernetes.proxy import Proxy


class KubernetesEngine(Engine):
    """Agents in pods that are running already, such as those of a StatefulSet, a Job or a JobSet."""

    name = "kubernetes"
    job_kind = "pod"
    more_memory = "raise resources.limits.memory of the pod's container"
    more_shm = "mount an emptyDir with `medium: Memory` at /dev/shm of the pod"
    more_cpus = "resources.requests.cpu of the pod"

    def choose(self, spec: RunSpec, env: Mapping[str, str]) -> Choice:
        """The pods that the user selected by labels or by names."""
        if not spec.uses_pods:
            raise UsageError(
                "--engine kubernetes needs pods", hint="add `--pods SELECTOR`, such as app=train, or `-H pod/NAME`"
            )
        # Here, because every command loads this module for its options.
        from muster.engines.kubernetes.kubectl import current_context
        from muster.engines.kubernetes.pods import find_pods
        from muster.engines.kubernetes.proxy import start_proxy

        typed = spec.hosts or ()
        context = current_context()  # once: the user may switch to another cluster while the job runs
        proxy = start_proxy(context)  # it takes as long as finding the pods
        pods = find_pods(spec.pods, [host.pod for host in typed], spec.namespace, spec.pod_container, context)
        hosts = typed if spec.pods is None else tuple(Host(name=pod.label, pod=pod.name) for pod in pods)
        return PodChoice(engine=self, hosts=hosts, said=_said(spec, pods), pods=_by_name(pods), proxy=proxy)

    def launch(self, choice: Choice, spec: RunSpec, folder: str) -> Launch:
        """One exec per pod."""
        assert isinstance(choice, PodChoice)
        commands: list[StartCommand] = []
        for host in choice.hosts:
            pod = choice.pods[host.pod]
            argv = (*pod.exec_argv("-i", "-q"), _python(spec, host), "-c", PIPED_AGENT)
            agent = AgentSpec(host=host, name=host.name, node=pod.node)
            commands.append(StartCommand(argv=argv, agents=(agent,), bridges=(argv,), pod=pod))
        can_lack = can_lack_hosts(spec)
        return PodLaunch(
            engine=self, commands=tuple(commands), channel="pods", can_lack_hosts=can_lack, proxy=choice.proxy
        )

    def login(self, command: StartCommand) -> tuple[str, ...] | None:
        """The kubectl command that runs another one in the pod."""
        return login_argv(command.pod) if command.pod is not None else None

    def explain(self, command: StartCommand, code: int | None, text: str) -> MusterError:
        """Explain why exec did not start the agent."""
        return explain_exec(command, code, text)

    def program_hint(self, command: StartCommand) -> str:
        """The hint for a missing kubectl."""
        return "install kubectl, and check that `kubectl get pods` works"


@dataclass(frozen=True, kw_only=True)
class PodChoice(Choice):
    """The hosts of a choice, with the pod of each."""

    pods: Mapping[str, Pod]
    """By their full names."""
    proxy: Proxy = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class PodLaunch(Launch):
    """The commands of a job in pods, and what carries their connections."""

    proxy: Proxy = field(repr=False)
    """Ends with the job; if there is none, with this process."""


def login_argv(pod: Pod) -> tuple[str, ...]:
    """What to type before a command line, as one word, to run it in a pod."""
    return (*pod.exec_argv(), "sh", "-c")


def explain_exec(command: StartCommand, code: int | None, text: str) -> HostError:
    """Turn the output of an exec, or the refusal of the API server, into an error with a hint."""
    from muster.engines.kubernetes.kubectl import FORBIDDEN, missing_rule

    pod = command.pod
    assert pod is not None
    name, python = command.agents[0].name, command.argv[-3]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    denied = FORBIDDEN.search(text)
    if denied:
        return HostError(
            name, f"Kubernetes does not allow you to run commands in this pod ({last})", hint=missing_rule(denied)
        )
    if "executable file not found" in text or "no such file or directory" in text.lower():
        return HostError(
            name, f"its container {pod.container} has no {python}", hint="choose another with `--python PATH`"
        )
    if last.startswith("muster: Python"):
        return HostError(name, last.removeprefix("muster: "), hint="choose another with `--python PATH`")
    if "not found" in text and "pods" in text:
        return HostError(
            name, f"its pod {pod.name} does not exist any more", hint="`kubectl get pods` lists those that do"
        )
    if "container not found" in text or "completed pod" in text:
        return HostError(
            name, f"its container {pod.container} is not running", hint=f"see `kubectl describe pod {pod.name}`"
        )
    how = "exec did not start the agent" if code is None else f"exec ended with code {code} before the agent started"
    try_it = f"check that `{shlex.join((*pod.exec_argv(), python, '--version'))}` works from here"
    return HostError(name, f"{how}: {last}" if last else how, hint=try_it)


def _python(spec: RunSpec, host: Host) -> str:
    return spec.python_on(host) or "python3"


def _by_name(pods: Sequence[Pod]) -> dict[str, Pod]:
    return {pod.name: pod for pod in pods}


def _said(spec: RunSpec, pods: Sequence[Pod]) -> tuple[str, ...]:
    """What the screen says about the choice."""
    if spec.pods is None:
        return ()
    where = pods[0].namespace
    return (f"--pods {spec.pods} in namespace {where}: {names([pod.label for pod in pods])}",)

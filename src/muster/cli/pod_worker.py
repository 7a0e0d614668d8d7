"""What `muster run` does in the other pods of a Kubernetes Job: it finds the first one, and becomes an agent of it."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import NoReturn

from muster.controller.links.certificate import authority_of
from muster.controller.links.dial_order import order_text, token_of
from muster.engines.engine import DIALING_AGENT
from muster.engines.kubernetes.job_engine import POD_LIMIT, KubernetesJobEngine, this_pod
from muster.engines.kubernetes.pod_environment import PodJob, lone_index, token_in
from muster.errors import HostError, UsageError
from muster.output.screen import Screen
from muster.spec import RunSpec
from muster.text import duration

_TERMINATION_LOG = "/dev/termination-log"

_LONGEST_MESSAGE = 1000
"""Characters; Kubernetes keeps 4096 bytes."""

_BETWEEN = 0.5
"""Seconds between two tries to reach the first pod."""

_STILL_WAITING = 15.0
"""Seconds between two messages about what this pod waits for."""

_CONNECT_LIMIT = 120.0
"""Seconds for the agent to be admitted, once the first pod listens: it may wait for the end of an earlier agent."""


def follow(spec: RunSpec) -> None:
    """Become the agent of this pod, if another pod runs the controller of this job; otherwise return."""
    if spec.engine not in ("auto", KubernetesJobEngine.name) or spec.uses_pods or spec.hosts is not None:
        return
    alone = lone_index(os.environ)
    if alone and not spec.quiet:
        said = f"pod {alone} of an Indexed Job runs on its own; for one job on all pods, set PET_NNODES or add --nnodes"
        sys.stderr.write(f"muster: {said}\n")
    pods = this_pod(os.environ)
    if pods is None or pods.index == 0:
        return
    token = token_in(os.environ)
    screen = Screen(quiet=spec.quiet)
    screen.info(f"pod {pods.index} of {pods.nodes} of Kubernetes Job {pods.name}; {pods.pods[0]} runs the controller")
    try:
        addresses = _wait_for_first(pods, screen)
    finally:
        screen.close()
    _become_agent(pods, token, addresses, spec.python or sys.executable)


def leave_message(text: str) -> None:
    """Leave how the run ended where Kubernetes shows it: in `kubectl describe pod`, as the message of the container."""
    try:
        with open(_TERMINATION_LOG, "r+", encoding="utf-8", errors="replace") as file:
            file.write(text[:_LONGEST_MESSAGE])
    except OSError:
        pass  # not in a pod, or read-only


def _wait_for_first(pods: PodJob, screen: Screen) -> list[str]:
    """The addresses of the first pod, when it listens."""
    if not pods.address:
        raise UsageError(
            f"the address of the first pod, {pods.pods[0]}, is unknown",
            hint="set `subdomain` in the pod template to the name of a headless Service that selects the pods, "
            "or PET_MASTER_ADDR to the name of the first pod",
        )
    begin = said = time.monotonic()
    while True:
        found, why = _reach(pods.address, pods.port)
        if found:
            return found
        now = time.monotonic()
        if now - begin > POD_LIMIT:
            raise HostError(
                pods.pods[0],
                f"did not listen on port {pods.port} of {pods.address} within {duration(POD_LIMIT)} ({why})",
                hint="`kubectl get pods` shows whether the first pod runs, and `kubectl logs` what its controller does",
            )
        if now - said > _STILL_WAITING:
            said = now
            screen.info(f"waiting for {pods.address}, port {pods.port}: {why} ({now - begin:.0f} s)")
        time.sleep(_BETWEEN)


def _reach(address: str, port: int) -> tuple[list[str], str]:
    """The numeric addresses of a host, if it listens on this port; otherwise why not."""
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a name such as `train-0..train` has no encoding
        return [], f"its name does not resolve yet ({getattr(error, 'strerror', None) or error})"
    why = ""
    addresses = list(dict.fromkeys(str(place[4][0]) for place in found))
    for each in addresses:
        try:
            socket.create_connection((each, port), timeout=3.0).close()
            return [each, *(other for other in addresses if other != each)], ""
        except OSError as error:
            why = f"{each} does not answer yet ({error.strerror or error})"
    return [], why


def _become_agent(pods: PodJob, token: str, addresses: list[str], python: str) -> NoReturn:
    """Replace this process by the agent, which ends with the exit code of the job."""
    order = order_text(
        addresses=addresses,
        port=pods.port,
        certificate=authority_of(token),
        token=token_of(token),
        key_from=(pods.index_from,),
        limit=_CONNECT_LIMIT,
        is_patient=True,
    )
    os.environ.pop("MUSTER_TOKEN", None)
    try:
        os.execvpe(python, [python, "-c", DIALING_AGENT], {**os.environ, "MUSTER_DIAL": order})
    except OSError as error:
        raise UsageError(f"could not start {python} ({error.strerror})", hint="choose a Python with --python") from None

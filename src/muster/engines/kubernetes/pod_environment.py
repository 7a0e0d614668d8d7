"""Reads the variables of a pod: its place among the pods of its Job, and where the first of them is.

- An Indexed Job sets JOB_COMPLETION_INDEX, and the pod's hostname is JOB-INDEX. How many pods there are is not known.
- JobSet runs Indexed Jobs; the hostname is JOBSET-NAME-NUMBER-INDEX, and JobSet also sets the subdomain.
- Kubeflow's TrainJob (on JobSet) and PyTorchJob set torchrun's own variables, PET_NNODES, PET_NODE_RANK,
  PET_NPROC_PER_NODE, PET_MASTER_ADDR and PET_MASTER_PORT. `muster submit --k8s` sets those it needs too.
- An old PyTorchJob sets only RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which then count pods, not processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.errors import UsageError
from muster.hosts import MAX_HOSTS

PORT = 29430
"""The controller's port if no variable chooses one."""

TOKEN = "MUSTER_TOKEN"
"""The variable with the secret that the pods share."""

TOKEN_FILE = "/var/run/secrets/muster/token"
"""The file with the secret, where a Secret is mounted instead."""

JOB_ID = "MUSTER_JOB_ID"
"""The variable with the id that `muster submit` has chosen for the job."""

LABEL = "muster/job"
"""The label of everything that `muster submit` creates for a job; its value is the job's id."""

CONTAINER = "muster"
"""The name of the container that it creates."""

_SHORTEST_TOKEN = 32
"""Characters; a short secret can be guessed by trying, because everybody sees the certificate made from it."""

_INDEX = ("PET_NODE_RANK", "JOB_COMPLETION_INDEX", "RANK")
_ADDRESS = ("PET_MASTER_ADDR", "MASTER_ADDR")
_PORT = ("PET_MASTER_PORT", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class PodJob:
    """The place of a pod in its Job."""

    index: int
    index_from: str
    """The variable with the index."""
    nodes: int
    """Number of pods."""
    name: str
    """Of the Job, as far as the pod's hostname shows it."""
    pods: tuple[str, ...]
    """The names of all pods, without the suffix that Kubernetes adds."""
    address: str
    """The address of the first pod; empty if it is not known."""
    port: int
    """Where the first pod listens."""
    nproc: int | None
    """Ranks per pod; None for one per GPU."""


def in_pod(env: Mapping[str, str]) -> bool:
    """Whether this is the environment of a Kubernetes pod."""
    return "KUBERNETES_SERVICE_HOST" in env


def read_pod_job(env: Mapping[str, str], hostname: str, hosts_file: str = "") -> PodJob | None:
    """The Job of several pods that this pod belongs to; None in any other pod, and outside of pods.

    `hosts_file` is the text of /etc/hosts, in which Kubernetes writes the pod's full name.
    """
    index_from = _first(env, _INDEX)
    nodes_from = _first(env, ("PET_NNODES", *(("WORLD_SIZE",) if index_from == "RANK" else ())))
    if not in_pod(env) or not index_from or not nodes_from or _is_rank_of_others(env, index_from):
        return None
    nodes = _number(env, nodes_from, least=1, most=MAX_HOSTS)
    if nodes == 1:
        return None
    index = _number(env, index_from, least=0, most=nodes - 1)
    port_from, nproc = _first(env, _PORT), env.get("PET_NPROC_PER_NODE", "")
    stem, has_index = _stem(hostname, index)
    return PodJob(
        index=index,
        index_from=index_from,
        nodes=nodes,
        name=stem,
        pods=tuple(f"{stem}-{number}" if has_index else f"node-{number}" for number in range(nodes)),
        address=_address(env, f"{stem}-0" if has_index else "", hostname, hosts_file),
        port=_number(env, port_from, least=1, most=65535) if port_from else PORT,
        nproc=_number(env, "PET_NPROC_PER_NODE", least=1, most=9999) if nproc.isdigit() else None,
    )


def lone_index(env: Mapping[str, str]) -> str:
    """The index of a pod of an Indexed Job that runs on its own, because the number of pods is not set; else empty."""
    return "" if not in_pod(env) or env.get("PET_NNODES") else env.get("JOB_COMPLETION_INDEX", "")


def token_in(env: Mapping[str, str], path: str = TOKEN_FILE) -> str:
    """The secret that the pods share; UsageError if they share none."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            token = file.read(4096).strip()
        where = path
    except FileNotFoundError:
        token, where = env.get(TOKEN, "").strip(), TOKEN
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        hint = "set `securityContext.fsGroup` of the pod, or the Secret's `defaultMode: 0444`"
        raise UsageError(f"could not read the Secret of the job in {path} ({why})", hint=hint) from None
    if len(token) < _SHORTEST_TOKEN:
        problem = f"{where} has fewer than {_SHORTEST_TOKEN} characters" if token else "the pods share no secret"
        raise UsageError(
            f"{problem}, so the pods of this job could not trust each other",
            hint="`kubectl create secret generic muster --from-literal=token=$(openssl rand -hex 32)`, and set "
            f"{TOKEN} in the pod template with `secretKeyRef: {{name: muster, key: token}}`",
        )
    return token


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((name for name in names if env.get(name)), "")


def _is_rank_of_others(env: Mapping[str, str], index_from: str) -> bool:
    """Whether RANK is that of a process, which another launcher in this pod has started."""
    return index_from == "RANK" and ("LOCAL_RANK" in env or not env.get("MASTER_ADDR"))


def _number(env: Mapping[str, str], name: str, *, least: int, most: int) -> int:
    text = env[name].rpartition(":")[2] if name == "PET_NNODES" else env[name]  # torchrun's MIN:MAX
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= most):
        raise UsageError(
            f"{name}={env[name]}: must be a number from {least} to {most}",
            hint="check `env` in the pod template, or run on this pod alone with `--engine local`",
        )
    return int(text)


def _stem(hostname: str, index: int) -> tuple[str, bool]:
    """The part of the hostname that the pods share, and whether the index follows it."""
    name = hostname.partition(".")[0]
    stem, _, last = name.rpartition("-")
    return (stem, True) if stem and last == str(index) else (name, False)


def _address(env: Mapping[str, str], first: str, hostname: str, hosts_file: str) -> str:
    """Where the first pod is: as a variable says, or by the name that it has if this pod has one in a subdomain."""
    name = _first(env, _ADDRESS)
    if name:
        return env[name]
    own = hostname.partition(".")[0]
    for line in hosts_file.splitlines():
        for word in line.partition("#")[0].split()[1:]:
            host, _, domain = word.partition(".")
            if host == own and domain and first:
                return f"{first}.{domain}"
    return ""

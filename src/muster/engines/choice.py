"""Chooses the engine and the hosts of a job from the user's options and the environment."""

from __future__ import annotations

from collections.abc import Mapping

from muster.engines.engine import Choice, in_allocation
from muster.engines.table import detect, load
from muster.errors import UsageError
from muster.spec import RunSpec
from muster.text import names


def choose(spec: RunSpec, env: Mapping[str, str]) -> Choice:
    """Choose the engine and its hosts."""
    _check_pods(spec)
    if spec.engine == "auto":
        return _automatic(spec, env)
    engine = load(spec.engine)
    if spec.lab and not engine.takes_lab:
        raise UsageError(
            f"--lab works with ssh, not with --engine {engine.name}",
            hint="create a lab that stays up: `muster lab up 2 --slurm --mpi`, then `muster lab ssh h1`",
        )
    return engine.choose(spec, env)


def _automatic(spec: RunSpec, env: Mapping[str, str]) -> Choice:
    """The engine of the surrounding scheduler job, unless the user gives hosts outside it; otherwise ssh or local.

    Pods are always reached by kubectl.
    """
    if spec.uses_pods:
        return load("kubernetes").choose(spec, env)
    found = None if spec.lab else detect(env)
    if found is None:
        return load("local" if spec.hosts is None else "ssh").choose(spec, env)
    engine, allocation = found
    if spec.hosts is not None and not allocation.has_all(spec.hosts):
        said = f"detected: {allocation}; -H names hosts outside it, so Muster uses ssh"
        return Choice(engine=load("ssh"), hosts=spec.hosts, said=(said,))
    return in_allocation(engine, spec, allocation)


def _check_pods(spec: RunSpec) -> None:
    """Raise UsageError for pods with other hosts or with another engine, and for options of pods without pods."""
    machines = [host.name for host in spec.hosts or () if not host.pod]
    if not spec.uses_pods:
        flag = "-n" if spec.namespace else "-c" if spec.pod_container else ""
        if flag and spec.engine != "kubernetes":
            ranks = f"; for the number of ranks per host, use `--nproc {spec.namespace}`"
            more = ranks if spec.namespace and spec.namespace.isdigit() else ""
            raise UsageError(f"{flag} has no effect without pods", hint=f"add `--pods SELECTOR` or `-H pod/NAME`{more}")
    elif machines:
        raise UsageError(
            f"-H: pods and other hosts ({names(machines)}) cannot run the same job",
            hint="pods have a network of their own; run Muster in either the pods or the hosts",
        )
    elif spec.engine not in ("auto", "kubernetes"):
        raise UsageError(f"--engine {spec.engine} does not run in pods", hint="leave --engine out")
    elif spec.lab:
        raise UsageError("--lab has no pods", hint="leave --lab out")
    elif spec.image:
        raise UsageError("--image: pods already run in a container", hint="leave --image out")

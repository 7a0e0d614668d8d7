"""Chooses the engine and the hosts of a job from the user's options and the environment."""

from __future__ import annotations

from collections.abc import Mapping

from muster.engines.engine import Choice, in_allocation
from muster.engines.table import detect, load
from muster.errors import UsageError
from muster.spec import RunSpec


def choose(spec: RunSpec, env: Mapping[str, str]) -> Choice:
    """Choose the engine and its hosts."""
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
    """The engine of the surrounding scheduler job, unless the user gives hosts outside it; otherwise ssh or local."""
    found = None if spec.lab else detect(env)
    if found is None:
        return load("local" if spec.hosts is None else "ssh").choose(spec, env)
    engine, allocation = found
    if spec.hosts is not None and not allocation.has_all(spec.hosts):
        said = f"detected: {allocation}; -H names hosts outside it, so Muster uses ssh"
        return Choice(engine=load("ssh"), hosts=spec.hosts, said=(said,))
    return in_allocation(engine, spec, allocation)

"""Which engine runs a job, and on which hosts: from what the user asked for and what the environment shows."""

from __future__ import annotations

from collections.abc import Mapping

from muster.engines.engine import Choice, in_allocation
from muster.engines.table import detect, load
from muster.errors import UsageError
from muster.spec import RunSpec


def choose(spec: RunSpec, env: Mapping[str, str]) -> Choice:
    """Settle the engine and its hosts."""
    if spec.engine == "auto":
        return _automatic(spec, env)
    engine = load(spec.engine)
    if spec.lab and not engine.takes_lab:
        raise UsageError(
            f"--lab makes hosts for ssh, and --engine {engine.name} has others",
            hint="`muster lab up 2 --slurm --mpi` makes a cluster that stays; `muster lab ssh h1` gets you into it",
        )
    return engine.choose(spec, env)


def _automatic(spec: RunSpec, env: Mapping[str, str]) -> Choice:
    """The engine of the job we are in, unless the user names hosts outside it; else ssh or local."""
    found = None if spec.lab else detect(env)
    if found is None:
        return load("local" if spec.hosts is None else "ssh").choose(spec, env)
    engine, allocation = found
    if spec.hosts is not None and not allocation.has_all(spec.hosts):
        said = f"detected: {allocation}; -H names other hosts, so ssh is used"
        return Choice(engine=load("ssh"), hosts=spec.hosts, said=(said,))
    return in_allocation(engine, spec, allocation)

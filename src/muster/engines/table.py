"""The table of engines, including those that other packages add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from muster.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from muster.engines.allocation import Allocation
    from muster.engines.engine import Engine

# `auto` tries them in this order. Slurm comes before PBS, because its plugin spank_pbs sets PBS_* variables in Slurm
# jobs.
ENGINES = {
    "local": "muster.engines.local.engine:LocalEngine",
    "ssh": "muster.engines.ssh.engine:SshEngine",
    "slurm": "muster.engines.slurm.engine:SlurmEngine",
    "pbs": "muster.engines.pbs.engine:PbsEngine",
    "kubernetes-job": "muster.engines.kubernetes.job_engine:KubernetesJobEngine",
    "mpi": "muster.engines.mpi.engine:MpiEngine",
    "kubernetes": "muster.engines.kubernetes.engine:KubernetesEngine",
}
"""Name and class of each engine; imported on use."""

GROUP = "muster.engines"
"""The entry point group through which other packages add engines.

It is read only if `--engine` names an unknown engine: reading the metadata of all installed packages takes 70 ms, as
long as loading all of `muster run`, so `auto` and `--help` do not use it.
"""


@cache
def load(name: str) -> Engine:
    """Return the engine with this name, or raise UsageError."""
    place = ENGINES.get(name)
    if place is not None:
        module, _, attribute = place.partition(":")
        return getattr(import_module(module), attribute)()
    for point in _added(name):
        try:
            return point.load()()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"--engine {name}: could not load {point.value} ({why})", hint="update the package that provides it"
            ) from error
    raise UsageError(f"unknown engine {name}", hint=f"choose one of {', '.join(NAMES)}")


@cache
def _added(name: str) -> tuple[EntryPoint, ...]:
    """The entry points of other packages with this name."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP, name=name))


def built_in() -> list[Engine]:
    """Muster's own engines, in the order of the table."""
    return [load(name) for name in ENGINES]


def detect(env: Mapping[str, str]) -> tuple[Engine, Allocation] | None:
    """The scheduler's job that this process runs in, with its engine."""
    for engine in built_in():
        allocation = engine.detect(env)
        if allocation is not None:
            return engine, allocation
    return None


class Names:
    """The valid values of `--engine`: iterating lists Muster's own, `in` also accepts those of other packages."""

    def __iter__(self) -> Iterator[str]:
        return iter(("auto", *ENGINES))

    def __contains__(self, name: object) -> bool:
        return name == "auto" or name in ENGINES or bool(_added(str(name)))


NAMES = Names()


# --- the side of ranks: these modules import only the standard library, muster.errors and muster.hosts -----------

LAUNCHERS: tuple[tuple[str, str], ...] = (
    # Open MPI, then MPICH and Intel MPI, before Slurm: inside a Slurm job both start their daemons with srun, and the
    # ranks inherit the daemon's SLURM_PROCID, which is wrong for them.
    ("OMPI_COMM_WORLD_RANK", "muster.engines.mpi.environment:open_mpi_rank"),
    ("PMI_RANK", "muster.engines.mpi.environment:pmi_rank"),
    ("SLURM_STEP_ID", "muster.engines.slurm.environment:step_task"),
    # PBS last: its tasks know where they run but not how many there are.
    ("PBS_TASKNUM", "muster.engines.pbs.environment:job_task"),
)
"""For each launcher, in order, a variable that its ranks have, and the function that reads the others."""

COMPLETIONS: tuple[tuple[str, str], ...] = (("PBS_TASKNUM", "muster.engines.pbs.nodefile:with_nodefile"),)
"""The same for launchers that keep some variables in files: the function that adds them to the environment."""

JOB_HOSTS: tuple[tuple[str, str], ...] = (("SLURM_JOB_NODELIST", "muster.engines.slurm.environment:nodelist_clue"),)
"""Variables with the hosts of a scheduler's job, to which mpirun assigns ranks in that order."""

JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID")
"""Variables that identify a scheduler's job."""

STEP_MARKS = ("SLURM_STEP_ID",)
"""Set by schedulers whose own launcher may also set PMI_RANK; their other variables are more complete."""

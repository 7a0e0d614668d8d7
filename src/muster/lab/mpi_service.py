"""MPI in a lab: Open MPI's mpirun and MPICH's mpiexec.hydra start ranks on every host by plain ssh."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from muster.errors import LabError
from muster.lab.kinds import Kind
from muster.lab.service import Run, Service
from muster.lab.system_programs import SYSTEM_PATH

_TRIES = 5
"""Attempts for a program that ends by SIGPIPE, as hydra does on a busy machine when one of its parts exits early."""


class Mpi(Service):
    """Both MPIs, tested at startup; they use the ssh of the hosts."""

    title = "MPI"
    script = "mpi.sh"
    programs = ("mpirun.openmpi", "mpiexec.hydra")
    kinds: frozenset[Kind] = frozenset({"root", "userns"})

    def wait(self, hosts: Sequence[str], run: Run) -> None:
        """Start two processes on each of the first two hosts with each MPI."""
        used = hosts[:2]
        slots = ",".join(f"{host}:2" for host in used)
        # A clean environment: under Slurm, for example, mpirun would not use ssh.
        clean = ["env", "-i", f"PATH={SYSTEM_PATH}"]
        for argv in (
            ["mpirun", "--allow-run-as-root", "-H", slots, "hostname"],
            ["mpiexec.hydra", "-hosts", slots, "-n", str(2 * len(used)), "hostname"],
        ):
            # hydra waits forever for a host that does not answer.
            limited = [*clean, "timeout", "20", *argv]
            done = run(used[0], limited, timeout=30)
            for _ in range(_TRIES - 1):
                if done.returncode != -signal.SIGPIPE:
                    break
                done = run(used[0], limited, timeout=30)
            if done.returncode != 0 or sorted(done.stdout.split()) != sorted([*used, *used]):
                said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
                raise LabError(f"{argv[0]} could not start processes on {slots} from {used[0]}: {said}")

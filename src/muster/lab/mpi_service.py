"""MPI in a lab: Open MPI's mpirun and MPICH's mpiexec.hydra start ranks on every host by plain ssh."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from muster.errors import LabError
from muster.lab.kinds import Kind
from muster.lab.service import Run
from muster.lab.system_programs import SYSTEM_PATH, find

SCRIPT = Path(__file__).with_name("mpi.sh")

_TRIES = 5
"""Times that a program is started which ends by SIGPIPE: hydra on a busy machine, when a part of it ended before."""


class Mpi:
    """Both MPIs, tried out; they use the ssh that the hosts have."""

    title = "MPI"
    kinds: frozenset[Kind] = frozenset({"root", "userns"})
    daemons: frozenset[str] = frozenset()

    def check(self) -> None:
        """Raise a LabError if a program is missing."""
        for program in ("mpirun.openmpi", "mpiexec.hydra"):
            find(program)

    def write(self, folder: Path) -> None:
        """Write the boot script."""
        (folder / SCRIPT.name).write_text(SCRIPT.read_text())

    def wait(self, hosts: Sequence[str], run: Run) -> None:
        """Start two processes on each of the first two hosts, with either MPI."""
        used = hosts[:2]
        slots = ",".join(f"{host}:2" for host in used)
        # A clean environment: under Slurm, say, mpirun would not use ssh.
        clean = ["env", "-i", f"PATH={SYSTEM_PATH}"]
        for argv in (
            ["mpirun", "--allow-run-as-root", "-H", slots, "hostname"],
            ["mpiexec.hydra", "-hosts", slots, "-n", str(2 * len(used)), "hostname"],
        ):
            # hydra waits for ever for a host that does not answer.
            limited = [*clean, "timeout", "20", *argv]
            done = run(used[0], limited, timeout=30)
            for _ in range(_TRIES - 1):
                if done.returncode != -signal.SIGPIPE:
                    break
                done = run(used[0], limited, timeout=30)
            if done.returncode != 0 or sorted(done.stdout.split()) != sorted([*used, *used]):
                said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
                raise LabError(f"{argv[0]} does not start processes on {slots} from {used[0]}: {said}")

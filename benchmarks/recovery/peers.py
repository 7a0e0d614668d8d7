"""torchrun and NVRx's ft_launcher with the same script on the same hosts."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.commands import BIN
from benchmarks.experiment import Failed
from benchmarks.recovery import moments
from benchmarks.recovery.stage import PACE, SCRIPT, Stage, Trial

LIMIT = 120.0
"""Seconds after a fault in which a peer must have a new world."""
COLLECTIVE_TIMEOUT = "10"
"""Seconds, an argument of the script: the default of torch is 30 minutes, and without it peers wait that long."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A launcher that is started by hand on every host."""

    name: str
    program: Path
    options: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()

    def start(self, stage: Stage, *, nodes: str, hosts: int, ranks: int, timeout: bool = True) -> Trial:
        """Start it on the first hosts with `--nnodes nodes`; the first one serves the rendezvous."""
        folder = stage.new_folder()
        chosen = stage.workers[:hosts]
        argv = [
            "env",
            *self.environment,
            str(self.program),
            "--nnodes",
            nodes,
            "--nproc-per-node",
            str(ranks),
            "--max-restarts",
            "20",
        ]
        argv += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{chosen[0]}:29400", "--rdzv-id", folder.name]
        argv += [*self.options, str(SCRIPT), str(folder), str(PACE), *([COLLECTIVE_TIMEOUT] if timeout else [])]
        return stage.trial(folder, dict.fromkeys(chosen, argv))


# Without it, agents timed out waiting for keys of the new round when a spare should have taken over (2 of 2 runs).
TORCHRUN = Peer(name="torchrun", program=BIN / "torchrun", environment=("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",))


def ft_launcher(program: Path) -> Peer:
    """NVRx, which the project does not depend on, from another virtual environment with the same torch."""
    return Peer(name="ft_launcher", program=program, options=("--ignore-missing-fault-tol-cfg",))


def last_error(trial: Trial) -> str:
    """The last exception that any of its processes printed."""
    words = "\n".join(job.words.decode(errors="replace") for job in trial.jobs.values())
    found = re.findall(r"^[\w.]*\.(\w+Error)\b", words, re.MULTILINE)
    return f" ({found[-1]})" if found else ""


def how_it_went(trial: Trial, since: float) -> str:
    """What a peer did after a fault, in a few words."""
    try:
        trial.wait_for("a new world", lambda: moments.begun(trial.moments(), since) is not None, LIMIT)
    except Failed:
        took = time.time() - since
        return f"no new world in {LIMIT:.0f} s" if took >= LIMIT else f"gave up after {took:.0f} s{last_error(trial)}"
    done = moments.begun(trial.moments(), since)
    assert done is not None
    return f"{done - since:.1f} s"

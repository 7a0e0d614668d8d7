"""Requeues the surrounding PBS job, or submits its script again where users may not use qrerun."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.engines.pbs.qstat import pbs_program
from muster.engines.requeue import Requeue, ask, read_limits
from muster.errors import MusterError

_JOB = re.compile(r"(\d+)(?:\[\d*\])?(?:\.\S+)?")


@dataclass(frozen=True, kw_only=True)
class PbsRequeue(Requeue):
    """A job of qsub.

    PBS allows qrerun to its operators only, so for most users the script is submitted again: a new job for PBS, which
    starts after this one has ended. `muster submit` left the script in the working directory.
    """

    script: Path
    qrerun: str = "qrerun"
    qsub: str = "qsub"

    @property
    def mark(self) -> str:
        """`pbs-4711.server`."""
        return pbs_mark(self.job)

    def again(self) -> str | None:
        """Try qrerun, then qsub; the copy of the script is named after the new job."""
        try:
            ask((self.qrerun, self.job))
            return None
        except MusterError as error:
            refused = error
        if not self.script.is_file():
            raise MusterError(
                f"{refused.message}; {self.script}, the batch script to submit again, does not exist",
                hint="keep the batch script that `muster submit` wrote, or ask an operator of PBS to allow qrerun",
            )
        printed = ask((self.qsub, "-W", f"depend=afterany:{self.job}", str(self.script)))
        found = _JOB.fullmatch(printed.strip().splitlines()[-1]) if printed.strip() else None
        if found is None:
            raise MusterError(f"{self.qsub} printed no job id: {printed.strip()}")
        copy = self.script.with_name(_renumbered(self.script.name, found[1]))
        if copy != self.script:
            shutil.copy2(self.script, copy)  # the next requeue looks for it there
        return pbs_mark(found[0])


def read_requeue(env: Mapping[str, str]) -> PbsRequeue | None:
    """How the job is requeued; None if its batch script does not ask for that."""
    limits = read_limits(env)
    found = _JOB.fullmatch(env.get("PBS_JOBID", ""))
    if limits is None or found is None:
        return None
    limit, warning, ends_at = limits
    return PbsRequeue(
        job=found[0],
        title=f"PBS job {found[0]}",
        limit=limit,
        warning=warning,
        ends_at=ends_at,
        script=Path(os.getcwd(), f"{env.get('PBS_JOBNAME', 'job')}-{found[1]}.pbs"),
        qrerun=pbs_program("qrerun", env),
        qsub=pbs_program("qsub", env),
    )


def pbs_mark(job: str) -> str:
    """The name of the file that stands for a PBS job, whose id may contain brackets."""
    return "pbs-" + "".join(char if char.isalnum() or char in "._-" else "_" for char in job)


def _renumbered(name: str, number: str) -> str:
    """`train-12.pbs` for `train-11.pbs` and the number 12."""
    return re.sub(r"-\d+(?=\.pbs$)", f"-{number}", name)

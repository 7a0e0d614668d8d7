"""The quick check of `muster run`: beside the import of torch, silent unless it finds something."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from muster.check.checks import BEFORE_RUN
from muster.check.cluster_facts import Cluster, Wanted
from muster.check.definition import judge_all, load
from muster.check.finding import Finding
from muster.check.gather import gather, logins_of
from muster.check.here import are_here, code_here, paths_in
from muster.controller.links.link import AgentLink
from muster.controller.phrases import count
from muster.controller.source_code import find_script
from muster.engines.engine import Launch
from muster.errors import MusterError
from muster.job import Job
from muster.output.screen import Screen

_MOST_TOLD = 6
"""Findings on the screen of a job; `muster check` tells all."""


class Beforehand:
    """Asks the hosts of a job that is about to start."""

    def __init__(self, launch: Launch, screen: Screen, *, nproc: int | None, image: str | None) -> None:
        self._launch = launch
        self._screen = screen
        self._nproc = nproc
        self._image = image

    async def look(self, job: Job, links: Sequence[AgentLink]) -> None:
        """Tell what is wrong, and raise what would surely make the job fail."""
        checks = await asyncio.to_thread(load, BEFORE_RUN)
        wanted = await asyncio.to_thread(self._wanted, job)
        logins = logins_of(self._launch)
        machines = await gather(job, links, checks, wanted, nproc=self._nproc, logins=logins)
        cluster = Cluster(machines=tuple(machines), wanted=wanted)
        found = [finding for finding in judge_all(checks, cluster) if finding.severity != "note"]
        # A script that imports no torch may well do without what is broken.
        errors = [finding for finding in found if finding.severity == "error" and job.preload]
        if errors:
            raise _failure(errors, cluster)
        for finding in found[:_MOST_TOLD]:
            line = cluster.line(finding.fix) or finding.fix.say
            self._screen.warning(f"{finding.severity}: {finding.title}; to mend it: {line}")
        if len(found) > _MOST_TOLD:
            self._screen.warning(f"{count(len(found) - _MOST_TOLD, 'more finding')}: `muster check` tells all")

    def _wanted(self, job: Job) -> Wanted:
        script = None if job.sync else find_script(job)
        paths = tuple(dict.fromkeys(paths_in(job.args)))
        return Wanted(
            env={**job.carried, **job.env},
            named=job.env,
            cwd=job.cwd,
            script=script.path if script else "",
            code=code_here(job.cwd, script) if len(job.hosts) > 1 else {},
            torch=bool(job.preload),
            paths=paths,
            here=are_here(job.cwd, paths),
            interface=job.interface,
            image=self._image,
            sync=job.sync,
            argv=("muster", "run", *_typed()),
        )


def _typed() -> list[str]:
    import sys

    return sys.argv[2:] if os.path.basename(sys.argv[0]) == "muster" else []


def _failure(errors: Sequence[Finding], cluster: Cluster) -> MusterError:
    told = [finding.title for finding in errors]
    message = told[0] if len(told) == 1 else f"{len(told)} things would make this job fail\n  " + "\n  ".join(told)
    fixes = dict.fromkeys(cluster.line(finding.fix) or finding.fix.say for finding in errors)
    return MusterError(message, hint="\n      ".join([*fixes, "`--no-check` starts it all the same"]))

"""The quick check of `muster run`: beside the import of torch, silent unless it finds something."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from muster.check.checks import BEFORE_RUN
from muster.check.cluster_facts import Cluster, Wanted
from muster.check.definition import judge_all, load
from muster.check.finding import Finding
from muster.check.gather import gather, logins_of
from muster.check.here import wanted_by
from muster.controller.links.link import AgentLink
from muster.engines.engine import Launch
from muster.errors import MusterError
from muster.job import Job
from muster.output.screen import Screen
from muster.text import count

_MOST_TOLD = 6
"""Findings on the screen of a job; `muster check` tells all."""


class Beforehand:
    """Asks the hosts of a job that is about to start."""

    def __init__(self, launch: Launch, screen: Screen) -> None:
        self._launch = launch
        self._screen = screen

    async def look(self, job: Job, links: Sequence[AgentLink]) -> None:
        """Tell what is wrong, and raise what would surely make the job fail."""
        checks = await asyncio.to_thread(load, BEFORE_RUN)
        wanted = await asyncio.to_thread(_wanted, job)
        logins = logins_of(self._launch)
        machines = await gather(job, links, checks, wanted, logins=logins)
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


def _wanted(job: Job) -> Wanted:
    typed = sys.argv[2:] if os.path.basename(sys.argv[0]) == "muster" else []
    return wanted_by(job, ["run", *typed], torch=bool(job.preload), code=len(job.hosts) > 1)


def _failure(errors: Sequence[Finding], cluster: Cluster) -> MusterError:
    told = [finding.title for finding in errors]
    message = told[0] if len(told) == 1 else f"{len(told)} things would make this job fail\n  " + "\n  ".join(told)
    fixes = dict.fromkeys(cluster.line(finding.fix) or finding.fix.say for finding in errors)
    return MusterError(message, hint="\n      ".join([*fixes, "`--no-check` starts it all the same"]))

"""The quick check of `muster run`: it runs while torch is imported and prints nothing unless it finds a problem."""

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

_MOST_PRINTED = 6
"""Maximum number of findings that `muster run` prints; `muster check` prints all of them."""


class Beforehand:
    """Checks the hosts of a job that is about to start."""

    def __init__(self, launch: Launch, screen: Screen) -> None:
        self._launch = launch
        self._screen = screen

    async def look(self, job: Job, links: Sequence[AgentLink]) -> None:
        """Print warnings, and raise an error for what is certain to make the job fail."""
        checks = await asyncio.to_thread(load, BEFORE_RUN)
        wanted = await asyncio.to_thread(_wanted, job)
        logins = logins_of(self._launch)
        machines = await gather(job, links, checks, wanted, logins=logins)
        cluster = Cluster(machines=tuple(machines), wanted=wanted)
        found = [finding for finding in judge_all(checks, cluster) if finding.severity != "note"]
        # A script that does not import torch may not need what is broken.
        errors = [finding for finding in found if finding.severity == "error" and job.preload]
        if errors:
            raise _failure(errors, cluster)
        for finding in found[:_MOST_PRINTED]:
            line = cluster.line(finding.fix) or finding.fix.say
            self._screen.warning(f"{finding.severity}: {finding.title}. Fix: {line}")
        if len(found) > _MOST_PRINTED:
            more = count(len(found) - _MOST_PRINTED, "more finding")
            self._screen.warning(f"{more}; run `muster check` to see all of them")


def _wanted(job: Job) -> Wanted:
    typed = sys.argv[2:] if os.path.basename(sys.argv[0]) == "muster" else []
    return wanted_by(job, ["run", *typed], torch=bool(job.preload), code=len(job.hosts) > 1)


def _failure(errors: Sequence[Finding], cluster: Cluster) -> MusterError:
    titles = [finding.title for finding in errors]
    several = f"{len(titles)} problems would make this job fail\n  " + "\n  ".join(titles)
    fixes = dict.fromkeys(cluster.line(finding.fix) or finding.fix.say for finding in errors)
    return MusterError(
        titles[0] if len(titles) == 1 else several,
        hint="\n      ".join([*fixes, "use --no-check to start the job anyway"]),
    )

"""The quick check: connect to the hosts, run the probes, test connections, judge."""

from __future__ import annotations

import asyncio
from pathlib import Path

from muster.check.cluster_facts import Cluster, Wanted
from muster.check.definition import Check
from muster.check.dialing import dial_all
from muster.check.gather import gather, logins_of
from muster.check.session import session
from muster.engines.engine import Launch
from muster.job import Job


async def quick(job: Job, launch: Launch, checks: dict[str, Check], wanted: Wanted, *, folder: Path) -> Cluster:
    """Collect everything that can be determined about the hosts without importing torch."""
    async with session(launch, job.id, folder) as hosts:
        machines, reach = await asyncio.gather(
            gather(job, hosts.links, checks, wanted, logins=logins_of(launch)), dial_all(hosts.links, wanted)
        )
        return Cluster(
            machines=tuple(machines), refusals=tuple(hosts.refusals), wanted=wanted, reach=reach, pods=hosts.pods
        )

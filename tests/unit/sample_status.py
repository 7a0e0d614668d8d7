"""A job status with ranks that have been started, without any host."""

from __future__ import annotations

import asyncio
import time

from messages import UP

from muster.controller.links.link import AgentLink
from muster.controller.monitor.job_status import JobStatus
from muster.engines.engine import AgentSpec, Launch, StartCommand
from muster.engines.local.engine import LocalEngine
from muster.hosts import Host
from muster.job import Job
from muster.plan import make_plan
from muster.spec import RunSpec

SPEC = AgentSpec(host=Host(name="h1"), name="h1")
LAUNCH = Launch(engine=LocalEngine(), commands=(StartCommand(argv=("true",), agents=(SPEC,)),), channel="pipes")


def make_status(ranks: int = 2) -> tuple[JobStatus, AgentLink]:
    """The status, and the link over which its events come."""
    spec = RunSpec(target="train.py", cwd="/code")
    job = Job(id="20261115-101500-train-3f9a", spec=spec, hosts=(SPEC.host,), carried={})
    status = JobStatus(job, LAUNCH, time.time())
    link = asyncio.run(_make_link())
    link.facts = UP  # type: ignore[assignment]
    status.connected([link])
    hosts = [Host(name="h1", slots=ranks)]
    status.attempt_begins(0, make_plan(job.id, hosts, threads=[0], restarts=0, user_env={}), {})
    status.started()
    return status, link


async def _make_link() -> AgentLink:
    return AgentLink(SPEC, lambda link, event: None, lambda name, text: None)

"""The job that a command wants to talk to: it runs here, or one sentence says why not."""

from __future__ import annotations

import socket
import time

from muster.errors import MusterError, UsageError
from muster.jobs.job_folders import KeptJob, read_job, short_id
from muster.jobs.location import birth
from muster.jobs.ps_text import how_it_ended
from muster.jobs.state import JobState
from muster.text import printable


def running_here(job: KeptJob, command: str) -> JobState:
    """The state of a job whose controller runs on this machine; `command` is what the user typed before the job."""
    name = short_id(job.id)
    if job.life == "elsewhere" and job.state is not None and job.state.host == socket.gethostname():
        raise MusterError(
            f"job {job.id} runs in another container of this machine and does not answer here",
            hint=f"type `{command} {name}` in that container; `muster ps`, `logs`, `show` and `top` work here",
        )
    if job.life == "elsewhere" and job.state is not None:
        host = printable(job.state.host)
        there = f"ssh -t {host} {command} {name}"
        if command == "muster stop" and job.state.cancel:  # many sites forbid ssh to the hosts of a job
            there = printable(job.state.cancel)
        raise MusterError(
            f"job {job.id} runs on {host}, but this is {socket.gethostname()}",
            hint=f"type `{there}`; `muster ps`, `logs`, `show` and `top` work here",
        )
    if job.life != "alive" or job.state is None:
        raise UsageError(f"job {job.id} {how_it_ended(job)}", hint=f"`muster show {name}` prints the verdict")
    return job.state


def has_gone(state: JobState) -> bool:
    """Whether the controller of a job on this machine has ended."""
    return not state.controller_birth or birth(state.controller) != state.controller_birth


def wait_until_gone(job: KeptJob, limit: float) -> bool:
    """Wait for the end of a job, at most `limit` seconds; whether it came. The process may live on, as a notebook."""
    deadline = time.monotonic() + limit
    while read_job(job.folder).may_run:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True

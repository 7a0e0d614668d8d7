"""A job that a command wants to talk to: here and running, or one sentence that says why not."""

from __future__ import annotations

import socket
import time

from muster.errors import MusterError, UsageError
from muster.jobs.job_folders import KeptJob, read_job
from muster.jobs.location import birth
from muster.jobs.ps_text import how_it_ended
from muster.jobs.state import JobState


def running_here(job: KeptJob, command: str) -> JobState:
    """The state of a job whose controller runs on this machine; `command` is what the user typed before the job."""
    if job.life == "elsewhere" and job.state is not None and job.state.host == socket.gethostname():
        raise MusterError(
            f"job {job.id} runs in another container of this machine, and does not answer here",
            hint=f"`{command} {job.id}` in that container; `muster ps`, `logs` and `top` work here too",
        )
    if job.life == "elsewhere" and job.state is not None:
        raise MusterError(
            f"job {job.id} runs on {job.state.host}, and this is {socket.gethostname()}",
            hint=f"`ssh -t {job.state.host} {command} {job.id}`; `muster ps`, `logs` and `top` work here too",
        )
    if job.life != "alive" or job.state is None:
        raise UsageError(f"job {job.id} {how_it_ended(job)}", hint=f"`muster logs {job.id}` shows what its ranks wrote")
    return job.state


def has_gone(state: JobState) -> bool:
    """Whether the controller of a job on this machine has ended."""
    return birth(state.controller) != state.controller_birth


def wait_until_gone(job: KeptJob, limit: float) -> bool:
    """Wait for the end of a job, at most `limit` seconds; whether it came. A notebook outlives the jobs it launched."""
    deadline = time.monotonic() + limit
    while read_job(job.folder).may_run:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True

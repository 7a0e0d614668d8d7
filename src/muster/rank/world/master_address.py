"""Determines where rank 0 is from a launcher's variables. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from zlib import crc32

from muster.engines.rank_variables import Ask, Clue
from muster.errors import UsageError

DEFAULT_PORT = 29500
"""The port in torch's documentation; used if there is no job id."""

# Below Linux's ephemeral ports (from 32768), which outgoing connections use, and below torch's 29400 and 29500.
FIRST_JOB_PORT = 20000
JOB_PORTS = 9000


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """How the ranks of a job find rank 0 if its address or port is not given (see `find_rank_0.py`)."""

    key: str
    """Distinguishes this job from others on the same hosts; with PMI, rank 0 generates and publishes it."""
    munge: bool = False
    """Whether MUNGE, where it works, must prove that rank 0 belongs to the same user: job ids of Slurm are public."""
    port: int
    """The first of the ports on which rank 0 may listen; 0 for a free port that it publishes through PMI."""
    hosts: tuple[str, ...] = ()
    """Where rank 0 may be, most likely first; empty if the launcher has to be asked."""
    ask: Ask | None = None


@dataclass(frozen=True, kw_only=True)
class Master:
    """Address and port of rank 0 as far as known, how to find the rest, and the reasons."""

    addr: str | None
    port: int | None
    meeting: Meeting | None = None
    reasons: tuple[str, ...]


def find_master(env: Mapping[str, str], *, job: tuple[str, str] | None = None, clue: Clue | None = None) -> Master:
    """Use MASTER_ADDR and MASTER_PORT, or else determine how the ranks find rank 0.

    `job` is the variable with the job id and that id; without it, ranks cannot distinguish their rank 0 from
    another job's, so MASTER_ADDR is required.
    """
    addr, port = env.get("MASTER_ADDR") or None, _given_port(env)
    ask = clue.ask if clue else None
    if addr:
        clue = Clue(hosts=(addr,), reason=f"MASTER_ADDR={addr}")
    if clue is None:
        reason = "the host of rank 0 is unknown because MASTER_ADDR is not set"
        return Master(addr=None, port=port, reasons=(reason,))
    if addr and port:
        return Master(addr=addr, port=port, reasons=(clue.reason, f"MASTER_PORT={port}"))
    if ask == "PMI":
        meeting = Meeting(key="", port=0, hosts=clue.hosts, ask=ask)
        return Master(addr=addr, port=port, meeting=meeting, reasons=(clue.reason,))
    if job is None:
        why = f"using the default port {DEFAULT_PORT} because MASTER_PORT is not set"
        return Master(addr=clue.hosts[0], port=DEFAULT_PORT, reasons=(clue.reason, why))
    meeting = replace(meet(job[1], clue), munge="SLURM_JOB_ID" in env)
    why = f"rank 0 announces its port at port {meeting.port}, which is derived from the job id ({job[0]})"
    return Master(addr=next(iter(clue.hosts), None), port=port, meeting=meeting, reasons=(clue.reason, why))


def meet(job_id: str, clue: Clue) -> Meeting:
    """The meeting of the ranks of a job."""
    key = sha256(job_id.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return Meeting(key=key, port=job_port(job_id), hosts=clue.hosts, ask=clue.ask)


def job_port(job_id: str) -> int:
    """Derive a port from a job id: the same on all ranks, and rarely that of another job."""
    return FIRST_JOB_PORT + crc32(job_id.encode("utf-8", "surrogateescape")) % JOB_PORTS


def _given_port(env: Mapping[str, str]) -> int | None:
    text = env.get("MASTER_PORT")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536):
        raise UsageError(f"MASTER_PORT={text} is not a port", hint="use a number from 1 to 65535, for example 29500")
    return int(text)

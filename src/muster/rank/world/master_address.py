"""Where rank 0 is when the environment does not say it: pure functions of a launcher's variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal
from zlib import crc32

from muster.errors import UsageError
from muster.hosts import expand

LOOPBACK = "127.0.0.1"

DEFAULT_PORT = 29500
"""The port that torch's own documents use; taken when nothing tells two jobs apart."""

# Below Linux's ephemeral ports (from 32768), where outgoing connections sit, and below torch's 29400, 29500.
FIRST_JOB_PORT = 20000
JOB_PORTS = 9000

Ask = Literal["PMI", "PMIx"]
"""The services of MPI launchers that know where rank 0 is: MPICH's and Intel's, and that of Open MPI 5."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """How the ranks of a job find rank 0 where its address or port is not given (see `meeting.py`)."""

    key: str
    """Tells this job from all others that meet on the same hosts; rank 0 makes one up where it tells it by PMI."""
    port: int
    """The port, or the first of a few, where rank 0 answers; 0 for a free one where it tells it by PMI."""
    hosts: tuple[str, ...] = ()
    """Where rank 0 may be, the likeliest first; empty when the launcher has to be asked."""
    ask: Ask | None = None


@dataclass(frozen=True, kw_only=True)
class Master:
    """Address and port of rank 0 as far as they are known, how to find out the rest, and why (clauses)."""

    addr: str | None
    port: int | None
    meeting: Meeting | None = None
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Clue:
    """Something that leads to rank 0."""

    hosts: tuple[str, ...] = ()
    ask: Ask | None = None
    reason: str


ONE_HOST = Clue(hosts=(LOOPBACK,), reason=f"all ranks are on one host, so rank 0 is at {LOOPBACK}")


def find_master(env: Mapping[str, str], *, job: tuple[str, str] | None = None, clue: Clue | None = None) -> Master:
    """Take MASTER_ADDR and MASTER_PORT, else say how the ranks find rank 0.

    `job` is the variable that holds the job's id and that id; without one ranks cannot tell their own rank 0
    from another job's, and only MASTER_ADDR helps.
    """
    addr, port = env.get("MASTER_ADDR") or None, _given_port(env)
    ask = clue.ask if clue else None
    if addr:
        clue = Clue(hosts=(addr,), reason=f"MASTER_ADDR={addr}")
    if clue is None:
        reason = "the host of rank 0 is not known, because MASTER_ADDR is not set"
        return Master(addr=None, port=port, reasons=(reason,))
    if addr and port:
        return Master(addr=addr, port=port, reasons=(clue.reason, f"MASTER_PORT={port}"))
    if ask == "PMI":
        meeting = Meeting(key="", port=0, hosts=clue.hosts, ask=ask)
        return Master(addr=addr, port=port, meeting=meeting, reasons=(clue.reason,))
    if job is None:
        why = f"port {DEFAULT_PORT} is the default, because MASTER_PORT is not set"
        return Master(addr=clue.hosts[0], port=DEFAULT_PORT, reasons=(clue.reason, why))
    meeting = meet(job[1], clue)
    why = f"it tells its port at port {meeting.port}, which is made from the job's id ({job[0]})"
    return Master(addr=next(iter(clue.hosts), None), port=port, meeting=meeting, reasons=(clue.reason, why))


def meet(job_id: str, clue: Clue) -> Meeting:
    """The meeting of the ranks of a job."""
    key = sha256(job_id.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return Meeting(key=key, port=job_port(job_id), hosts=clue.hosts, ask=clue.ask)


def job_port(job_id: str) -> int:
    """Turn a job's id into a port: the same in each of its ranks, hardly ever that of another job."""
    return FIRST_JOB_PORT + crc32(job_id.encode("utf-8", "surrogateescape")) % JOB_PORTS


def _given_port(env: Mapping[str, str]) -> int | None:
    text = env.get("MASTER_PORT")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise UsageError(f"MASTER_PORT={text} is not a port", hint="a port is a number from 1 to 65535, such as 29500")
    return int(text)


def clue_from_nodelist(env: Mapping[str, str], name: str) -> Clue | None:
    """The hosts of a Slurm node list: rank 0 is on the first, unless `srun -m arbitrary` put it elsewhere."""
    if not env.get(name):
        return None
    hosts = tuple(expand(env[name], source=name))
    return Clue(hosts=hosts, reason=f"rank 0 is looked for from {hosts[0]} on, the first host of {name}")


# `h[1:1,3,2],login@0(4)`: inside the brackets the width of the numbers and a colon come first; what follows the @
# describes processors.
_ORTE_RANGE = re.compile(r"\[([0-9]{1,2}):([0-9,-]+)\]")
_ORTE_ADDRESS = re.compile(r"tcp6?://([^;/]+?):[0-9]+(?=;|$)")


def clue_from_orte(env: Mapping[str, str]) -> Clue | None:
    """What Open MPI 4 tells a rank: where mpirun is and, on the other hosts, the names of all of them.

    If ranks run beside mpirun, rank 0 is one of them, in whatever order -H names the hosts (seen in 4.1.4).
    """
    match = _ORTE_ADDRESS.search(env.get("OMPI_MCA_orte_hnp_uri", ""))
    if match is None:
        return None
    beside_mpirun = [part.strip("[]") for part in match[1].split(",")]
    regex = env.get("OMPI_MCA_orte_node_regex", "").partition("@")[0]
    names: list[str] = []
    if regex:
        listed = _ORTE_RANGE.sub(lambda range_: f"[{_padded(range_[2], int(range_[1]))}]", regex)
        names = expand(listed, source="OMPI_MCA_orte_node_regex")
    hosts = tuple(dict.fromkeys([*beside_mpirun, *names]))
    return Clue(hosts=hosts, reason=f"rank 0 is looked for from {hosts[0]} on, where mpirun is (OMPI_MCA_orte_hnp_uri)")


def _padded(numbers: str, width: int) -> str:
    return re.sub("[0-9]+", lambda number: number[0].zfill(width), numbers)

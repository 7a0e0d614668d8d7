"""Where rank 0 listens when the environment does not say it: pure functions of a launcher's variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from muster.errors import UsageError

LOOPBACK = "127.0.0.1"

DEFAULT_PORT = 29500
"""The port that torch's own documents use; taken when nothing tells two jobs apart."""

# Below Linux's ephemeral ports (from 32768), where outgoing connections sit, and below torch's 29400, 29500.
FIRST_JOB_PORT = 20000
JOB_PORTS = 9000


@dataclass(frozen=True, kw_only=True)
class Master:
    """Address and port of rank 0 as far as they are known, and why (clauses to put into a sentence)."""

    addr: str | None
    port: int
    reasons: tuple[str, ...]


def find_master(
    env: Mapping[str, str],
    *,
    job: tuple[str, str] | None = None,
    nodelist: str | None = None,
    one_host: bool = False,
) -> Master:
    """Take MASTER_ADDR and MASTER_PORT, else conclude them.

    `job` is the variable that holds the job's id and that id; `nodelist` names a variable that holds hosts in
    Slurm's form, where rank 0 runs on the first; `one_host` says that every rank is on this host.
    """
    addr, why_addr = _find_addr(env, nodelist, one_host)
    port, why_port = _find_port(env, job)
    return Master(addr=addr, port=port, reasons=(why_addr, why_port))


def _find_addr(env: Mapping[str, str], nodelist: str | None, one_host: bool) -> tuple[str | None, str]:
    if env.get("MASTER_ADDR"):
        return env["MASTER_ADDR"], f"MASTER_ADDR={env['MASTER_ADDR']}"
    if one_host:
        return LOOPBACK, f"all ranks are on one host, so the master address is {LOOPBACK}"
    if nodelist and env.get(nodelist):
        host = first_host(env[nodelist])
        return host, f"the master address is {host}, the first host of {nodelist}"
    return None, "the host of rank 0 is not known, because MASTER_ADDR is not set"


def _find_port(env: Mapping[str, str], job: tuple[str, str] | None) -> tuple[int, str]:
    text = env.get("MASTER_PORT")
    if text:
        if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
            raise UsageError(
                f"MASTER_PORT={text} is not a port", hint="a port is a number from 1 to 65535, such as 29500"
            )
        return int(text), f"MASTER_PORT={text}"
    if job:
        port = job_port(job[1])
        return port, f"port {port} is made from the job's id ({job[0]}), because MASTER_PORT is not set"
    return DEFAULT_PORT, f"port {DEFAULT_PORT} is the default, because MASTER_PORT is not set"


def job_port(job_id: str) -> int:
    """Turn a job's id into a port: the same in each of its ranks, hardly ever that of another job."""
    return FIRST_JOB_PORT + crc32(job_id.encode()) % JOB_PORTS


def first_host(nodelist: str) -> str:
    """Return the first host of a Slurm node list: `gpu[03-04,09]-ib,box` gives `gpu03-ib`."""
    host, inside, copying = "", False, True
    for char in nodelist:
        if char == "[":
            inside = True
        elif char == "]":
            inside, copying = False, True
        elif inside and char in "-,":
            copying = False
        elif char == ",":
            break
        elif copying:
            host += char
    return host


def count_on_node(tasks_per_node: str, node: int) -> int | None:
    """Return how many tasks Slurm put on a node, from its short form: `2(x3),1` is 2, 2, 2, 1."""
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        number, _, times = part.removesuffix(")").partition("(x")
        if not number.isdigit() or not (times or "1").isdigit():
            return None
        counts += [int(number)] * int(times or "1")
    return counts[node] if node < len(counts) else None

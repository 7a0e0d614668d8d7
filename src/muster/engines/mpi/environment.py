"""Reads mpirun's environment variables: OMPI_* of Open MPI, PMI_* of MPICH, Intel MPI and Cray's PALS."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.engines.rank_variables import (
    ONE_HOST,
    Clue,
    RankVariables,
    first,
    job_hosts,
    joined,
    optional,
    rank_and_size,
)
from muster.engines.table import JOB_IDS, STEP_MARKS
from muster.hosts import expand

_RANDOM = "OMPI_MCA_orte_precondition_transports"
"""A random number that Open MPI 4 gives to the ranks of one mpirun, and to nobody else."""

OPEN_MPI, MPICH = "mpirun (Open MPI)", "mpiexec (MPICH or Intel MPI)"


def open_mpi_rank(env: Mapping[str, str]) -> RankVariables:
    """OMPI_COMM_WORLD_*, set by Open MPI's mpirun."""
    rank, size = rank_and_size(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    local_size = optional(env, "OMPI_COMM_WORLD_LOCAL_SIZE")
    if local_size == size:
        clue = ONE_HOST
    else:
        # Inside a scheduler's job, mpirun assigns ranks to the job's hosts in order.
        clue = job_hosts(env) or clue_from_orte(env)
        if clue is None and "PMIX_NAMESPACE" in env:
            clue = Clue(ask="PMIx", reason="asking mpirun for the host of rank 0 (PMIX_NAMESPACE)")
    return RankVariables(
        launcher=OPEN_MPI,
        rank=rank,
        size=size,
        local_rank=optional(env, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=local_size,
        why=f"OMPI_COMM_WORLD_RANK={rank} and OMPI_COMM_WORLD_SIZE={size}",
        # Two mpiruns may have the same number, but they cannot listen on the same address. The last one is random.
        job=joined(env, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri", _RANDOM),
        clue=clue,
    )


def pmi_rank(env: Mapping[str, str]) -> RankVariables | None:
    """PMI_RANK and PMI_SIZE, set by the Hydra launcher of MPICH and Intel MPI and by Cray's PALS."""
    local_rank_name = first(env, "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
    if local_rank_name is None and any(mark in env for mark in STEP_MARKS):
        return None  # a scheduler's launcher sets PMI_RANK but no local rank; its own variables are more complete
    rank, size = rank_and_size(env, "PMI_RANK", "PMI_SIZE")
    local_size_name = first(env, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
    local_size = optional(env, local_size_name[0]) if local_size_name else None
    if "PMI_FD" in env:
        clue = Clue(ask="PMI", reason="rank 0 publishes its address through mpiexec (PMI_FD)")
    else:
        clue = ONE_HOST if local_size == size else job_hosts(env)
    return RankVariables(
        launcher=MPICH,
        rank=rank,
        size=size,
        local_rank=optional(env, local_rank_name[0]) if local_rank_name else None,
        local_size=local_size,
        why=f"PMI_RANK={rank} and PMI_SIZE={size}",
        job=first(env, "PMI_JOBID", "PALS_APID", *JOB_IDS),
        clue=clue,
    )


# `h[1:1,3,2],login@0(4)`: the brackets start with the width of the numbers and a colon; the part after @ describes
# processors.
_ORTE_RANGE = re.compile(r"\[([0-9]{1,2}):([0-9,-]+)\]")
_ORTE_ADDRESS = re.compile(r"tcp6?://([^;/]+?):[0-9]+(?=;|$)")


def clue_from_orte(env: Mapping[str, str]) -> Clue | None:
    """Where to look for rank 0 with Open MPI 4: the host of mpirun and, on the other hosts, the names of all hosts.

    If ranks run on mpirun's host, rank 0 is one of them, whatever the order of hosts in -H (observed in 4.1.4).
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
    return Clue(hosts=hosts, reason=f"looking for rank 0 from {hosts[0]} on, where mpirun runs (OMPI_MCA_orte_hnp_uri)")


def _padded(numbers: str, width: int) -> str:
    return re.sub("[0-9]+", lambda number: number[0].zfill(width), numbers)

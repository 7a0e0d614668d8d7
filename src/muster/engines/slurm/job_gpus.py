"""The GPUs of the surrounding Slurm job, for jobs whose steps would not get all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.engines.requeue import ask
from muster.errors import MusterError
from muster.hosts import expand

_SCONTROL_LIMIT = 10.0
"""Timeout in seconds for a busy slurmctld; without an answer, the agents get the GPUs that srun gives them."""

# If these requested the GPUs, a step with one task per host gets one GPU on all hosts but the last (Slurm 22.05); with
# --gpus-per-node and --gres it gets all.
_SHARED_OUT = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK")

_NODES = re.compile(r"^\s+Nodes=(\S+) .*?\bGRES=(\S*)", re.MULTILINE)
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,]+)?:(\d+)")


def gpus_of_job(env: Mapping[str, str], limit: float = _SCONTROL_LIMIT) -> tuple[dict[str, int], str]:
    """The number of GPUs of the job on each host, and why it is unknown; empty if its steps get all of them anyway."""
    if not any(env.get(name) for name in _SHARED_OUT):
        return {}, ""
    try:
        return read_gpus(ask(("scontrol", "show", "job", "--details", env["SLURM_JOB_ID"]), limit)), ""
    except MusterError as error:
        return {}, error.message


def read_gpus(details: str) -> dict[str, int]:
    """The number of GPUs on each host from `scontrol show job --details`; empty if there are none."""
    found: dict[str, int] = {}
    for names, gres in _NODES.findall(details):
        count = sum(map(int, _GPUS.findall(re.sub(r"\([^)]*\)", "", gres))))
        found |= dict.fromkeys(expand(names, source="scontrol"), count)
    return found if any(found.values()) else {}

"""Queries PBS about the surrounding job."""

from __future__ import annotations

import os
from collections.abc import Mapping

from muster.engines.allocation import Allocation
from muster.engines.pbs.environment import nodefile_lines, nodefile_text, read_pbs
from muster.engines.pbs.nodefile import pbs_setting
from muster.engines.requeue import ask
from muster.errors import MusterError
from muster.text import printable
from muster.user_file import read_user_file

_QSTAT_LIMIT = 10.0
"""Timeout in seconds for a busy PBS server; without an answer, the lines of PBS_NODEFILE set the number of ranks."""


def read_pbs_here(env: Mapping[str, str]) -> Allocation:
    """The allocation of the PBS job that this process runs in, from its environment and `qstat -f`."""
    nodefile = nodefile_text(env)
    nodefile_lines(nodefile)  # a broken file is an error that need not wait for a busy server
    text, silence = ask_qstat(env)
    return read_pbs(env, nodefile, text, silence=silence, gpufile=_gpufile(env))


def pbs_program(name: str, env: Mapping[str, str]) -> str:
    """The path of a PBS program; its directory is often not on PATH but is given in /etc/pbs.conf."""
    folder = env.get("PBS_EXEC") or pbs_setting("PBS_EXEC", env)
    path = os.path.join(folder, "bin", name) if folder else name
    return path if os.access(path, os.X_OK) else name


def ask_qstat(env: Mapping[str, str], limit: float = _QSTAT_LIMIT) -> tuple[str, str]:
    """The output of `qstat -f` for this job, and why there is none."""
    try:
        return ask((pbs_program("qstat", env), "-f", env.get("PBS_JOBID", "")), limit), ""
    except MusterError as error:
        return "", printable(error.message)


def _gpufile(env: Mapping[str, str]) -> str | None:
    try:
        return read_user_file(env["PBS_GPUFILE"]).decode()
    except (KeyError, OSError, ValueError):
        return None

"""The number of hosts of a PBS job and its first host, which PBS gives a task only in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from muster.user_file import read_user_file


def with_nodefile(env: Mapping[str, str]) -> Mapping[str, str]:
    """Add MASTER_ADDR for a task of pbsdsh, and WORLD_SIZE if each host of the job has one task.

    With several lines per host, OpenPBS does not distinguish the tasks of a host, so they have no rank.
    """
    if "PBS_TASKNUM" not in env or "RANK" in env:
        return env
    try:
        hosts = read_user_file(_nodefile(env)).decode().split()
    except (OSError, ValueError):
        hosts = []
    if not hosts:
        return env
    size = {"WORLD_SIZE": str(len(hosts))} if len(set(hosts)) == len(hosts) else {}
    return {"MASTER_ADDR": hosts[0], **size, **env}


def _nodefile(env: Mapping[str, str]) -> Path:
    if env.get("PBS_NODEFILE"):
        return Path(env["PBS_NODEFILE"])
    # Tasks on the first host lack the variable although the file exists (OpenPBS since 22.05).
    return Path(pbs_setting("PBS_HOME", env) or "/var/spool/pbs", "aux", env["PBS_JOBID"])


def pbs_setting(name: str, env: Mapping[str, str]) -> str:
    """A setting from /etc/pbs.conf on this host; empty if it is not set."""
    try:
        lines = read_user_file(env.get("PBS_CONF_FILE", "/etc/pbs.conf")).decode().splitlines()
    except (OSError, ValueError):
        return ""
    found = (line.partition("=") for line in lines)
    return next((value.strip() for key, _, value in found if key.strip() == name), "")

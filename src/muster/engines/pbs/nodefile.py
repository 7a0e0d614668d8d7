"""What PBS tells a task only in a file: how many hosts the job has, and which is the first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def with_nodefile(env: Mapping[str, str]) -> Mapping[str, str]:
    """Add MASTER_ADDR for a task of pbsdsh, and WORLD_SIZE where each host of the job has one task.

    With several lines for a host OpenPBS does not tell its tasks apart, so they have no rank either.
    """
    if "PBS_TASKNUM" not in env or "RANK" in env:
        return env
    try:
        hosts = _nodefile(env).read_text().split()
    except (OSError, ValueError):
        hosts = []
    if not hosts:
        return env
    size = {"WORLD_SIZE": str(len(hosts))} if len(set(hosts)) == len(hosts) else {}
    return {"MASTER_ADDR": hosts[0], **size, **env}


def _nodefile(env: Mapping[str, str]) -> Path:
    if env.get("PBS_NODEFILE"):
        return Path(env["PBS_NODEFILE"])
    # Tasks on the first host lack the variable, although the file is there (OpenPBS since 22.05).
    return Path(pbs_setting("PBS_HOME", env) or "/var/spool/pbs", "aux", env["PBS_JOBID"])


def pbs_setting(name: str, env: Mapping[str, str]) -> str:
    """A setting of this host's PBS, from /etc/pbs.conf; empty where it is not there."""
    try:
        lines = Path(env.get("PBS_CONF_FILE", "/etc/pbs.conf")).read_text().splitlines()
    except OSError:
        return ""
    found = (line.partition("=") for line in lines)
    return next((value.strip() for key, _, value in found if key.strip() == name), "")

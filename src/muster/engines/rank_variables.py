"""Reads a process's rank from its launcher's environment variables; the only part of the engines that ranks use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from muster.engines.table import COMPLETIONS, JOB_HOSTS, LAUNCHERS
from muster.errors import UsageError

LOOPBACK = "127.0.0.1"

Ask = Literal["PMI", "PMIx"]
"""Services of MPI launchers that know the host of rank 0: PMI (MPICH, Intel MPI) and PMIx (Open MPI 5)."""


@dataclass(frozen=True, kw_only=True)
class Clue:
    """Where to look for rank 0."""

    hosts: tuple[str, ...] = ()
    ask: Ask | None = None
    reason: str


ONE_HOST = Clue(hosts=(LOOPBACK,), reason=f"all ranks are on one host, so rank 0 is at {LOOPBACK}")


@dataclass(frozen=True, kw_only=True)
class RankVariables:
    """The rank of a process and related values from its launcher's variables; None if they are not set."""

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    why: str
    """The variables that were used."""
    job: tuple[str, str] | None
    """The name or names of the variables with the job id, and the id."""
    clue: Clue | None = None
    """Where to look for rank 0."""


def read_rank(env: Mapping[str, str]) -> RankVariables | None:
    """Read the variables of the first launcher that started this process."""
    for variable, place in LAUNCHERS:
        found = _function(place)(env) if variable in env else None
        if found is not None:
            return found
    return None


def complete(env: Mapping[str, str]) -> Mapping[str, str]:
    """The environment with the variables that launchers keep in files."""
    for variable, place in COMPLETIONS:
        if variable in env:
            env = _function(place)(env)
    return env


def job_hosts(env: Mapping[str, str]) -> Clue | None:
    """The most likely host of rank 0, from the hosts of the surrounding scheduler job."""
    for variable, place in JOB_HOSTS:
        if env.get(variable):
            return _function(place)(env, variable)
    return None


def _function(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def rank_and_size(env: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    """Read rank and size from these two variables, and check that they are consistent."""
    if size_name not in env:
        raise UsageError(
            f"{rank_name}={env[rank_name]} is set but {size_name} is not",
            hint=f"set {size_name} as well, or unset {rank_name} to run a single rank",
        )
    rank, size = _number(env, rank_name), _number(env, size_name)
    if rank >= size:
        raise UsageError(
            f"{rank_name}={rank} is out of range for {size_name}={size}",
            hint=f"ranks start at 0, so {rank_name} must be less than {size_name}",
        )
    return rank, size


def optional(env: Mapping[str, str], name: str) -> int | None:
    """The number in this variable; None if it is not set."""
    return _number(env, name) if name in env else None


def _number(env: Mapping[str, str], name: str) -> int:
    text = env[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 18):  # int() refuses thousands of digits
        raise UsageError(f"{name}={env[name]} is not a number", hint=f"set {name} to a number that is 0 or greater")
    return int(text)


def joined(env: Mapping[str, str], *names: str) -> tuple[str, str] | None:
    """The names and values of those variables that are set, joined into a job id."""
    there = [name for name in names if env.get(name)]
    return (" and ".join(there), " ".join(env[name] for name in there)) if there else None


def first(env: Mapping[str, str], *names: str) -> tuple[str, str] | None:
    """The first of these variables that is set, with its value."""
    return next(((name, env[name]) for name in names if env.get(name)), None)

"""Containers: the agent's command wrapped, so that the same engine starts it inside an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Program = Literal["podman", "docker", "apptainer"]

PROGRAMS: tuple[Program, ...] = ("podman", "docker", "apptainer")


@dataclass(frozen=True, kw_only=True)
class Container:
    """An image and how it is run."""

    program: Program
    image: str
    args: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """Mounted at the same place inside: the working directory, the job's folder."""
    cwd: str = "/"
    pass_env: tuple[str, ...] = ()
    """Names of variables that reach the agent from outside, where they are set."""

    def run(self, agent: Sequence[str]) -> tuple[str, ...]:
        """The command line, for a host, that runs `agent` inside the image."""
        raise AssertionError(agent)

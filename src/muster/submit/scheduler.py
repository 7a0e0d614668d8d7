"""The interface of a scheduler: what Muster needs to write a batch script and submit it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from muster.submit.request import Request


class Scheduler(Protocol):
    """A batch system; everything here but `check_program` is pure."""

    title: str
    program: str
    """The program that submits a script."""
    listing: str
    """The command that lists the user's jobs."""
    options: tuple[str, ...]
    """Options of the program, before the script."""
    mark: str
    """Start of a directive: `#SBATCH` or `#PBS`."""
    suffix: str
    """Suffix of the script's file."""
    hints: tuple[tuple[str, str], ...]
    """Regular expressions for error messages of the program, each with a hint."""

    def check(self, request: Request) -> None:
        """Raise a UsageError for what this scheduler would reject or misinterpret."""
        ...

    def check_program(self, path: str) -> None:
        """Raise a MusterError if the program at this path belongs to another scheduler."""
        ...

    def directives(self, request: Request) -> list[str]:
        """Return the directives of the job, without the mark."""
        ...

    def exports(self, request: Request) -> dict[str, str]:
        """Return the variables that the script exports for Muster; values may contain expressions of bash."""
        ...

    def environment(self, request: Request, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables for the program, from those of this process."""
        ...

    def job_id(self, printed: str) -> str | None:
        """Return the job's id from the program's output; None without one."""
        ...

    def name(self, request: Request) -> str:
        """Return the name of the job, which `--extra` may set."""
        ...

    def number(self, job: str) -> str:
        """Return the part of an id that is used in file names."""
        ...

    def next_steps(self, request: Request, job: str) -> list[tuple[str, str]]:
        """Return commands to watch and to stop the job, each with its purpose."""
        ...

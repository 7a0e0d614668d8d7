"""What Muster needs to know of a scheduler to write a script for it and submit it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from muster.submit.request import Request


class Scheduler(Protocol):
    """A batch system; everything here is pure but `check_program`."""

    title: str
    program: str
    """Submits a script."""
    listing: str
    """The command that lists the user's jobs."""
    options: tuple[str, ...]
    """Given to the program before the script."""
    mark: str
    """What a directive begins with."""
    suffix: str
    """Of the script's file."""
    hints: tuple[tuple[str, str], ...]
    """Words of a refusal, as a regular expression, and what helps."""

    def check(self, request: Request) -> None:
        """Raise a UsageError for what this scheduler would refuse, or understand otherwise than meant."""
        ...

    def check_program(self, path: str) -> None:
        """Raise a MusterError if the program at this path is another scheduler's of the same name."""
        ...

    def directives(self, request: Request) -> list[str]:
        """What the job asks for, a line each, without the mark."""
        ...

    def environment(self, request: Request, env: Mapping[str, str]) -> dict[str, str]:
        """The variables of this machine with which the program is to be run."""
        ...

    def job_id(self, printed: str) -> str | None:
        """The job's id in what the program printed; None if there is none."""
        ...

    def number(self, job: str) -> str:
        """The part of an id that stands in file names."""
        ...

    def next_steps(self, request: Request, job: str) -> list[tuple[str, str]]:
        """Commands to watch and to end the job, each with what it is for."""
        ...

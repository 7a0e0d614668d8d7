"""Requests of other commands to a running job over its unix socket, and the answers: one JSON object per line.

The command may be of another version of Muster, so a request carries the version of this protocol; one without is
version 1. A new field or request does not change the version, since readers ignore fields that they do not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypedDict

    from typing_extensions import NotRequired
else:
    from muster.shared.protocol import TypedDict

VERSION = 1
"""Version of this protocol: increased when a request or an answer changes its meaning."""


class JobRequest(TypedDict):
    """The fields of every request: its name, and the versions of the protocol and of the Muster that asks."""

    do: str
    protocol: NotRequired[int]
    muster: NotRequired[str]


class AskState(JobRequest):
    """Ask for the job's state, with its history after `since`, and with stack traces if `stacks` is set."""

    since: NotRequired[float | None]
    stacks: NotRequired[bool]


class AskStop(JobRequest):
    """Ask the job to end as after SIGTERM, within `grace` seconds; with `stacks`, save all stack traces first."""

    grace: NotRequired[float | None]
    stacks: NotRequired[bool]


class AskDrain(JobRequest):
    """Ask the job to leave a host that is about to go away, in `left` seconds if that is known."""

    host: str
    left: NotRequired[float | None]


class AskStacks(JobRequest):
    """Ask for the stack traces of all ranks."""


class Follow(JobRequest):
    """Ask for everything that the job shows from now on, and the `last` lines before."""

    last: NotRequired[int]


class Stopping(TypedDict):
    """The job has begun to end; `said` is a sentence about where the stack traces are."""

    ok: bool
    said: str


class Draining(TypedDict):
    """The job has begun to leave the host; `said` says what happens."""

    said: str


class StacksTaken(TypedDict):
    """The stack traces, as a report of the job (the fields of `muster.jobs.state.Report`)."""

    report: Mapping[str, Any]


class ShownLine(TypedDict):
    """For followers: a line that the job has shown on stdout (1) or stderr (2), and how it ends."""

    stream: int
    text: str
    end: str


class JobEnd(TypedDict):
    """For followers: the job has ended with this exit code."""

    end: int


class JobError(TypedDict):
    """Why a request could not be answered, and a hint; with `usage`, the request itself is wrong."""

    error: str
    hint: NotRequired[str | None]
    usage: NotRequired[bool]


JOB_REQUESTS: dict[str, type] = {
    "state": AskState,
    "stop": AskStop,
    "drain": AskDrain,
    "stacks": AskStacks,
    "follow": Follow,
}
"""Every request by its name, the value of `do`."""

JOB_ANSWERS: dict[str, type] = {
    "stop": Stopping,
    "drain": Draining,
    "stacks": StacksTaken,
    "line": ShownLine,
    "end": JobEnd,
    "error": JobError,
}
"""The answers; to `state` it is `muster.jobs.state.JobState.as_data`, which has a version of its own."""

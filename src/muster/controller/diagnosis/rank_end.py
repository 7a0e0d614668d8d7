"""How ranks and hosts ended: what their agents told of it, with times on the controller's clock. Pure."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.controller.diagnosis.failure_facts import Disk, Memory
    from muster.shared.events import FailureFacts

# Patterns are compiled when a rank has failed, not at the start of every job.
# What survivors say when another rank has gone: symptoms, never the cause.
_ECHO = (
    r"connection (closed|reset) by peer|broken pipe|socket closed|remote process exited|NCCL remote error|"
    r"ncclRemoteError|connection refused|Connection was likely closed|recvValueWithTimeout|failed to recv, got 0 bytes"
)

# What they say when another rank does not come.
_TIRED = (
    r"Timed out waiting .* for (recv|send) operation|wait timeout after|socket has timed out|"
    r"failed to pass monitoredBarrier"
)

_WATCHDOG = "Watchdog caught collective operation timeout"

_CHAIN = ("The above exception was the direct cause", "During handling of the above exception")


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    host: str
    status: int
    """Exit code, or minus the number of the signal."""
    time: float
    stopped: bool = False
    """Ended by Muster, because of something else."""
    summary: str = ""
    """Type and first line of an uncaught exception, or the text given to sys.exit."""
    message: str = ""
    """All that the exception says."""
    traceback: str = ""
    place: str = ""
    last_words: str = ""
    """The end of what it wrote, for ranks that left no exception."""
    done: int = 0
    """How many collectives it had come to."""
    begun: int | None = None
    """How many it had called by the time it was last heard of, where that is known exactly."""
    left: str = ""
    """How a rank with exit code 0 left: `end` of its script, `exit` by sys.exit; empty when it did neither."""
    memory: Memory | None = None
    disks: tuple[Disk, ...] = ()
    shm: Disk | None = None
    inside: str = ""
    """What sets the limits there: the name of a scheduler's engine, `container`, or nothing."""
    has_stdin: bool = False
    """Whether it could read what the user typed or piped."""
    rss: int = 0
    """The most memory it held itself, in bytes; 0 when it is not known."""

    @property
    def failed(self) -> bool:
        """Whether this rank failed of its own."""
        return self.status != 0 and not self.stopped

    @property
    def is_symptom(self) -> bool:
        """Whether its exception only says that another rank has gone, or does not come."""
        if self.status == -signal.SIGABRT and _WATCHDOG in self.last_words:
            return True  # NCCL's watchdog ends the process without an exception
        return self.is_echo or bool(re.search(_TIRED, self.root, re.IGNORECASE | re.DOTALL))

    @property
    def is_echo(self) -> bool:
        """Whether its exception says that another rank has gone."""
        return bool(re.search(_ECHO, self.root, re.IGNORECASE))

    @property
    def root(self) -> str:
        """What the first of its exceptions says, where one led to another."""
        if not any(words in self.traceback for words in _CHAIN):
            return self.message or self.summary
        first = min(self.traceback.find(words) for words in _CHAIN if words in self.traceback)
        # The lines that are not indented: frames and source lines are.
        return "\n".join(line for line in self.traceback[:first].splitlines() if line[:1].strip())

    @property
    def text(self) -> str:
        """What it said of its end: its exception or, without one, what it wrote last; else that may be much older."""
        said = "\n".join(filter(None, (self.message or self.summary, self.traceback)))
        return said or self.last_words

    @property
    def killed(self) -> bool:
        """Whether somebody or something ended it by SIGKILL."""
        return self.status == -signal.SIGKILL and not self.stopped


@dataclass(frozen=True, kw_only=True)
class HostLoss:
    """A host that was given up."""

    host: str
    why: str
    time: float
    is_up: bool = False
    """Whether its agent still answers, and only a process of Muster's there has ended."""


def with_facts(end: RankEnd, facts: FailureFacts | None) -> RankEnd:
    """The end of a rank with what its agent found out after it."""
    if facts is None:
        return end
    from muster.controller.diagnosis.failure_facts import Disk, Memory  # most jobs do not fail

    return replace(
        end,
        memory=Memory(**facts["memory"]),
        disks=tuple(Disk(**disk) for disk in facts["disks"]),
        shm=Disk(**facts["shm"]) if facts["shm"] else None,
        inside=facts["inside"],
    )

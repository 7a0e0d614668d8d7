"""How ranks and hosts ended, as reported by their agents, with times on the controller's clock. Pure."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.controller.diagnosis.failure_facts import Disk, Memory
    from muster.shared.host_state import FailureFacts

# Patterns are compiled when a rank has failed, not at the start of every job.
# Errors of ranks that lost their connection to another rank: symptoms, never the cause.
_ECHO = (
    r"connection (closed|reset) by peer|broken pipe|socket closed|remote process exited|NCCL remote error|"
    r"ncclRemoteError|connection refused|Connection was likely closed|recvValueWithTimeout|failed to recv, got 0 bytes"
)

# Errors of ranks that timed out waiting for another rank.
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
    """Ended by Muster for another reason, such as the failure of another rank."""
    summary: str = ""
    """Type and first line of an uncaught exception, or the text given to sys.exit."""
    message: str = ""
    """The whole message of the exception."""
    traceback: str = ""
    place: str = ""
    last_words: str = ""
    """The last lines of its stderr, for ranks that left no exception."""
    done: int = 0
    """Number of collectives it had reached."""
    begun: int | None = None
    """Number of collectives it had called according to its last report; None if not exactly known."""
    left: str = ""
    """How a rank with exit code 0 left: `end` of its script, `exit` by sys.exit, or empty for neither."""
    memory: Memory | None = None
    disks: tuple[Disk, ...] = ()
    shm: Disk | None = None
    inside: str = ""
    """What sets the limits on the host: the engine of a scheduler, `container`, or empty."""
    has_stdin: bool = False
    """Whether its stdin was that of `muster run`."""
    rss: int = 0
    """Its own peak memory in bytes; 0 if unknown."""
    kernel: tuple[str, ...] = ()
    """What the kernel of its host logged about hardware while the rank ran."""
    gpus: tuple[str, ...] = ()
    """The PCI addresses of the GPUs of its host, in the order of their numbers."""

    @property
    def failed(self) -> bool:
        """Whether this rank failed by itself rather than being stopped."""
        return self.status != 0 and not self.stopped

    @property
    def is_symptom(self) -> bool:
        """Whether its exception only shows that another rank left or did not arrive."""
        if self.status == -signal.SIGABRT and _WATCHDOG in self.last_words:
            return True  # NCCL's watchdog ends the process without an exception
        return self.is_echo or bool(re.search(_TIRED, self.root, re.IGNORECASE | re.DOTALL))

    @property
    def is_echo(self) -> bool:
        """Whether its exception shows that its connection to another rank broke."""
        return bool(re.search(_ECHO, self.root, re.IGNORECASE))

    @property
    def root(self) -> str:
        """The message of the first exception of a chain."""
        if not any(words in self.traceback for words in _CHAIN):
            return self.message or self.summary
        first = min(self.traceback.find(words) for words in _CHAIN if words in self.traceback)
        # The message is not indented; frames and source lines are.
        return "\n".join(line for line in self.traceback[:first].splitlines() if line[:1].strip())

    @property
    def text(self) -> str:
        """Its exception, or its last output if there was none; with an exception that output may be much older."""
        said = "\n".join(filter(None, (self.message or self.summary, self.traceback)))
        return said or self.last_words

    @property
    def killed(self) -> bool:
        """Whether something other than Muster killed it with SIGKILL."""
        return self.status == -signal.SIGKILL and not self.stopped


@dataclass(frozen=True, kw_only=True)
class HostLoss:
    """A host that Muster gave up on."""

    host: str
    why: str
    time: float
    is_up: bool = False
    """Whether its agent still answers and only another process of Muster there has ended."""
    ends_all: bool = False
    """Whether the launcher then ends all other agents, with SIGTERM to their ranks, as mpirun does."""
    pod: str = ""
    """The full name of its pod, if it is one."""


def with_facts(end: RankEnd, facts: FailureFacts | None) -> RankEnd:
    """The end of a rank, completed with what its agent found afterwards."""
    if facts is None:
        return end
    from muster.controller.diagnosis.failure_facts import Disk, Memory  # most jobs do not fail

    return replace(
        end,
        memory=Memory(**facts["memory"]),
        disks=tuple(Disk(**disk) for disk in facts["disks"]),
        shm=Disk(**facts["shm"]) if facts["shm"] else None,
        inside=facts["inside"],
        kernel=tuple(facts["kernel"]),
        gpus=tuple(facts["gpus"]),
    )

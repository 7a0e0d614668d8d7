"""The messages between agent and spawner, one JSON object per packet."""

from __future__ import annotations

from .protocol import kinds_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal, TypedDict
else:
    from .protocol import TypedDict


class Target(TypedDict):
    """What the ranks run, as the spawner and every rank are given it when they start."""

    preload: Sequence[str]
    cwd: str
    kind: str
    target: str
    args: Sequence[str]
    path: Sequence[Sequence[str]]
    nofile: int


class ZygoteConfig(Target):
    """What the zygote is started with: its socket, its agent, and the variables to restore after the imports."""

    socket: int
    agent: int
    restore: Mapping[str, str | None]
    keep: bool
    """Whether it may serve a later job, and so must notice when what it has imported changes."""


class NextJob(TypedDict):
    """What the ranks of the next job run, and their environment."""

    target: Target
    env: Mapping[str, str]


class RankConfig(Target):
    """What a rank runs, and the descriptors for its stacks and for the function of `muster.launch`."""

    stacks: int
    call: list[int]


class FreshRankConfig(RankConfig):
    """The same for a rank in a fresh interpreter, with the descriptors that it inherits."""

    stdin: int
    report: int


class StartRank(TypedDict):
    """Start a rank; its descriptors are attached: stdin, stdout, stderr, reports, stacks and the function, if any."""

    t: Literal["rank"]
    rank: int
    env: Mapping[str, str]


class StartStore(TypedDict):
    """Start the process that keeps the job's store; its listening socket is attached."""

    t: Literal["store"]


class ServeNext(TypedDict):
    """Serve another job, which the attached file describes; answered by `ready`, `stale` or `import_failed`."""

    t: Literal["next"]


class Stale(TypedDict):
    """What was imported does not fit the next job, so another zygote is needed."""

    t: Literal["stale"]
    why: str


class Ready(TypedDict):
    """The imports are done; `unsafe` says why ranks cannot be forked, if so."""

    t: Literal["ready"]
    unsafe: str


class ImportFailed(TypedDict):
    """Importing `module` failed; `missing` is the module that was not found, if that is why."""

    t: Literal["import_failed"]
    module: str
    missing: str
    error: str
    traceback: str


class Started(TypedDict):
    """A rank has been started; pid 0: the host allows no more processes."""

    t: Literal["started"]
    rank: int
    pid: int


class StoreStarted(TypedDict):
    """The store has been started; pid 0: the host allows no more processes."""

    t: Literal["store_started"]
    pid: int


class Storeless(TypedDict):
    """The process that keeps the job's store has ended."""

    t: Literal["storeless"]
    pid: int
    status: int


class Ended(TypedDict):
    """A rank has ended, with an exit code or minus a signal."""

    t: Literal["ended"]
    rank: int
    status: int
    time: float
    rss: int


class Stray(TypedDict):
    """A signal for all processes of the job has come to the spawner too, so the ranks have it."""

    t: Literal["stray"]
    number: int


ORDERS: dict[str, type] = kinds_of(StartRank, StartStore, ServeNext)
"""The messages from the agent to the spawner."""

NEWS: dict[str, type] = kinds_of(Ready, Stale, ImportFailed, Started, StoreStarted, Storeless, Ended, Stray)
"""The messages from the spawner to the agent."""

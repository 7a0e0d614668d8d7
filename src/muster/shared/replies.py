"""What an agent answers: one class for the fields of each reply; `re`, the `id` of the request, comes on top."""

from __future__ import annotations

from .host_state import Facts, FailureFacts
from .reports import Meeting, RecordedGroup, Where
from .requests import DialTarget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, TypedDict

    from typing_extensions import NotRequired
else:
    from .protocol import TypedDict


class Refused(TypedDict):
    """The agent could not read the request; `refused` says why."""

    refused: str


class Done(TypedDict):
    """The request has been carried out."""


class Renewed(TypedDict):
    """The facts about the host as they are now, and whether there is a process that can start ranks."""

    facts: Facts
    zygote: bool


class MemoryUse(TypedDict):
    """The memory of the agent and its zygote; pages that several processes share count in proportion (PSS)."""

    bytes: int


class Problem(TypedDict):
    """The request has been carried out, unless `problem` says why not."""

    problem: str


class Comparison(TypedDict):
    """Whether the host has the working directory and the script, and the first module that is `missing` for certain."""

    cwd: bool
    script: Literal["same", "different", "missing"]
    missing: str


class Unpacked(Problem):
    """The `folder` with the code, once the last piece has been unpacked."""

    folder: str


class ResultFile(TypedDict):
    """A file below the directory of --sync."""

    path: str
    size: int
    mtime_ns: int


class ResultPart(TypedDict):
    """Some `files` that were found, or a base64 `piece` of the file `path`, which ends with an empty one."""

    files: list[ResultFile]
    path: str
    piece: str
    problem: str
    over: bool
    """Whether this is the last part."""


class ProbeOutcome(TypedDict):
    """How one probe ended: its `value`, its `error`, or the seconds after which it `hung`."""

    value: NotRequired[Any]
    error: NotRequired[str]
    traceback: NotRequired[str]
    hung: NotRequired[float]
    seconds: NotRequired[float]


class ProbeAnswers(TypedDict):
    """The outcome of every probe, by its name."""

    answers: dict[str, ProbeOutcome]


class Held(TypedDict):
    """The port that the host holds; 0 if none."""

    port: int


class Port(Problem):
    """The port, or why it cannot be used and the process that owns it."""

    owner: str | None
    port: int


class Listening(Port):
    """The port, as in `Port`, and the addresses that the host's own name resolves to."""

    own_name: list[str]


class DialResult(DialTarget):
    """One address that was tried; an empty `problem` means that the right agent answered."""

    problem: str


class DialResults(TypedDict):
    """The result for every target."""

    results: list[DialResult]


class Prepared(TypedDict):
    """The spawner is ready; `unsafe` says why ranks start as fresh interpreters, `error` which import failed."""

    unsafe: str
    error: str
    module: str
    missing: str
    traceback: str
    facts: NotRequired[FailureFacts]
    """The state of the host, if the spawner was killed."""


class SelfReport(Where):
    """What a rank's own thread answered."""

    peer: int | None
    work: bool | None
    meeting: Meeting | None


class ProcessView(TypedDict):
    """What the kernel reports about a process, and its stack traces if they were taken."""

    state: str
    wchan: str
    cpu_seconds: float
    io: int
    switches: int
    command: str
    stack: str


class ChildView(ProcessView):
    """A child process of a rank."""

    pid: int


class RankView(ProcessView):
    """What is known about a rank; `answered` is None if it has no thread that could answer."""

    answered: bool | None
    self_report: NotRequired[SelfReport]
    recorder: NotRequired[dict[str, RecordedGroup] | None]
    children: list[ChildView]


class Stacks(TypedDict):
    """Every running rank of the host, by its number."""

    ranks: dict[str, RankView]


class Neighbor(TypedDict):
    """A busy process outside the job on a rank's CPUs."""

    pid: int
    name: str
    cpu: float
    on: int


class RankUse(TypedDict):
    """What a rank used while it was examined; shares of the time and rates per second."""

    cpu: float
    cpu_wait: float
    cpus: int
    disk: float
    read: float
    throttled: float
    throttles: float
    quota: float | None
    neighbor: Neighbor | None


class GpuGauges(TypedDict):
    """One GPU as its driver reports it."""

    index: int
    name: str
    use: NotRequired[float | None]
    memory_used: NotRequired[int | None]
    memory_total: NotRequired[int | None]
    clock: NotRequired[int | None]
    clock_max: NotRequired[int | None]
    temperature: NotRequired[int | None]
    throttled: NotRequired[str]


class Examined(TypedDict):
    """The resource usage of the ranks, the bytes queued for sending by address, and the GPUs."""

    ranks: dict[str, RankUse]
    queues: dict[str, int]
    gpus: list[GpuGauges]


class Stopped(TypedDict):
    """All ranks have ended, except the processes that are `left`, which are stuck in the kernel."""

    left: list[int]


class Warned(TypedDict):
    """The ranks that have not ended, and those of them that have no handler for the signal, so it would kill them."""

    ranks: list[int]
    unheard: list[int]


class StdinTaken(TypedDict):
    """There is room for another piece, unless the rank has `closed` its stdin."""

    closed: bool


REPLIES: dict[str, type] = {
    "renew": Renewed,
    "memory": MemoryUse,
    "compare": Comparison,
    "unpack": Unpacked,
    "probe": ProbeAnswers,
    "listen": Listening,
    "dial": DialResults,
    "hold": Held,
    "another_port": Port,
    "prepare": Prepared,
    "call": Problem,
    "start": Problem,
    "signal": Done,
    "notices": Done,
    "deadline": Warned,
    "stacks": Stacks,
    "examine": Examined,
    "stop": Stopped,
    "stdin": StdinTaken,
    "read_results": Done,
    "more_results": ResultPart,
}
"""The reply to each request that is answered, by the request's name."""

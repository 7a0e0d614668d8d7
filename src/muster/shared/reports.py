"""What a rank reports to its agent, which adds the number of the `rank` and forwards most of it to the controller."""

from __future__ import annotations

from .protocol import kinds_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypedDict

    from typing_extensions import NotRequired
else:
    from .protocol import TypedDict


class Report(TypedDict):
    """The rank that reports, and when."""

    rank: int
    time: float


class Where(TypedDict):
    """How far a rank is, and where: calls begun and finished by group, the time of its last progress, its code."""

    steps: int
    groups: dict[str, tuple[int, int]]
    moved: float
    place: str
    joining: bool


class Meeting(TypedDict):
    """Where a rank in `init_process_group` looks for the others."""

    at: str
    size: int | None
    rank: int | None


class RecordedCall(TypedDict):
    """One collective of torch's flight recorder."""

    number: int
    op: str
    sizes: list[list[int]]
    types: list[str]
    over: bool
    time: float
    place: tuple[str, int, str] | None


class RecordedGroup(TypedDict):
    """The last collectives of one process group."""

    id: str
    calls: list[RecordedCall]
    p2p: list[str]
    ranks: list[int] | None


class Raised(Report):
    """An uncaught exception, how far the rank was, and its last collectives."""

    t: Literal["exception"]
    summary: str
    message: str
    done: int
    traceback: NotRequired[str]
    place: NotRequired[str]
    hint: NotRequired[str]
    groups: NotRequired[dict[str, tuple[int, int]]]
    calls: NotRequired[dict[str, RecordedGroup] | None]
    paths: NotRequired[list[str]]


class SysExit(Report):
    """The script called sys.exit with a code other than 0, or with a text."""

    t: Literal["sysexit"]
    place: str
    text: str


class Left(Report):
    """The script has ended without an error: at its `end`, or by sys.exit (`exit`).

    `alone` is the number of optimizer steps of a rank that never communicated with others.
    """

    t: Literal["left"]
    how: str
    place: str
    groups: dict[str, tuple[int, int]]
    alone: NotRequired[int]


class Progress(Report):
    """How far the rank is: finished collectives, optimizer steps, saved files, where its code is, how much it waits."""

    t: Literal["progress"]
    done: int
    first: bool
    waiting: NotRequired[float | None]
    steps: NotRequired[int]
    saves: NotRequired[int]
    groups: NotRequired[dict[str, tuple[int, int]]]
    moved: NotRequired[float]
    place: NotRequired[str]
    joining: NotRequired[bool]


class Arrivals(Report):
    """When the rank called its last collectives, and began and ended its optimizer steps; seconds before `at`."""

    t: Literal["arrivals"]
    at: float
    groups: dict[str, list[list[float]]]
    steps: list[tuple[int, float, float]]


class Log(TypedDict):
    """A line for the job's debug log; from an agent without a `rank`, with a traceback where an error was handled."""

    t: Literal["log"]
    rank: NotRequired[int]
    time: float
    text: str
    traceback: NotRequired[str]


class Unwatched(Report):
    """Why this rank cannot report its progress."""

    t: Literal["unwatched"]
    why: str
    traceback: str


class Late(Report):
    """The script set variables that a forked rank no longer reads."""

    t: Literal["late"]
    names: list[str]


class Holding(Report):
    """A finished rank waits for others that are still creating a process group with it."""

    t: Literal["held"]
    limit: float


class Released(Report):
    """It no longer waits for them."""

    t: Literal["released"]


class Piece(Report):
    """A base64 piece of what the function of `muster.launch` returned or raised."""

    t: Literal["piece"]
    piece: str


class FunctionReturned(Report):
    """The pieces so far are the pickle of what the function returned."""

    t: Literal["returned"]


class FunctionRaised(Report):
    """The pieces so far are the pickle of what the function raised."""

    t: Literal["raised"]


class Sampling(Report):
    """The rank has a thread that answers requests, with this kernel thread id."""

    t: Literal["sampling"]
    thread: int


class ImportsTorch(Report):
    """The script of a fresh rank begins to import torch."""

    t: Literal["imports_torch"]


class Answer(Where, Report):
    """Where the rank is, because the agent asked; with `deep`, including stack traces and its last collectives."""

    t: Literal["answer"]
    deep: bool
    taken: bool
    stack: NotRequired[str]
    peer: NotRequired[int | None]
    work: NotRequired[bool]
    meeting: NotRequired[Meeting | None]
    recorder: NotRequired[dict[str, RecordedGroup] | None]


class Marked(Report):
    """The rank has noted where its main thread is, before SIGINT."""

    t: Literal["marked"]


class Moved(Report):
    """Whether the main thread has moved since then, or is stuck."""

    t: Literal["moved"]
    moved: bool
    stuck: bool


PASSED_ON: dict[str, type] = kinds_of(
    Raised,
    SysExit,
    Left,
    Progress,
    Arrivals,
    Unwatched,
    Log,
    Late,
    Holding,
    Released,
    Piece,
    FunctionReturned,
    FunctionRaised,
)
"""The reports that the controller gets, as events."""

REPORTS: dict[str, type] = {**PASSED_ON, **kinds_of(Sampling, ImportsTorch, Answer, Marked, Moved)}
"""Every report by its name, the value of `t`."""

"""What a rank reports to its agent, which adds the number of the `rank` and passes most of it on to the controller."""

from __future__ import annotations

from .protocol import kinds_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, TypedDict

    from typing_extensions import NotRequired
else:
    from .protocol import TypedDict


class Meeting(TypedDict):
    """Where a rank in `init_process_group` looks for the others."""

    at: str
    size: int | None
    rank: int | None


class RecordedCall(TypedDict):
    """One collective of torch's flight recorder."""

    number: int
    op: str
    sizes: list[Any]
    types: list[Any]
    over: bool
    time: float
    place: list[Any] | None


class RecordedGroup(TypedDict):
    """The last collectives of one process group."""

    id: str
    calls: list[RecordedCall]
    p2p: list[str]
    ranks: list[int] | None


class Raised(TypedDict):
    """An uncaught exception, how far the rank was, and its last collectives."""

    t: Literal["exception"]
    rank: int
    time: float
    summary: str
    message: str
    done: int
    traceback: NotRequired[str]
    place: NotRequired[str]
    hint: NotRequired[str]
    groups: NotRequired[dict[str, tuple[int, int]]]
    calls: NotRequired[dict[str, RecordedGroup] | None]
    paths: NotRequired[list[str]]


class SysExit(TypedDict):
    """The script called sys.exit with a code other than 0, or with a text."""

    t: Literal["sysexit"]
    rank: int
    time: float
    place: str
    text: str


class Left(TypedDict):
    """The script has ended without an error: at its `end`, or by sys.exit (`exit`)."""

    t: Literal["left"]
    rank: int
    time: float
    how: str
    place: str
    groups: dict[str, tuple[int, int]]


class Progress(TypedDict):
    """How far the rank is: finished collectives, optimizer steps, where its code is, and the share of time it waits."""

    t: Literal["progress"]
    rank: int
    time: float
    done: int
    first: bool
    waiting: NotRequired[float | None]
    steps: NotRequired[int]
    groups: NotRequired[dict[str, tuple[int, int]]]
    moved: NotRequired[float]
    place: NotRequired[str]
    joining: NotRequired[bool]


class Arrivals(TypedDict):
    """When the rank called its last collectives, and began and ended its optimizer steps; seconds before `at`."""

    t: Literal["arrivals"]
    rank: int
    time: float
    at: float
    groups: dict[str, list[list[float]]]
    steps: list[tuple[int, float, float]]


class Unwatched(TypedDict):
    """Why this rank cannot report its progress."""

    t: Literal["unwatched"]
    rank: int
    time: float
    why: str
    traceback: str


class Late(TypedDict):
    """The script set variables that a forked rank no longer reads."""

    t: Literal["late"]
    rank: int
    time: float
    names: list[str]


class Holding(TypedDict):
    """A rank that is done waits for others that are still creating a process group with it."""

    t: Literal["held"]
    rank: int
    time: float
    limit: float


class Released(TypedDict):
    """It no longer waits for them."""

    t: Literal["released"]
    rank: int
    time: float


class Piece(TypedDict):
    """A base64 piece of what the function of `muster.launch` returned or raised."""

    t: Literal["piece"]
    rank: int
    time: float
    piece: str


class FunctionReturned(TypedDict):
    """The pieces so far are the pickle of what the function returned."""

    t: Literal["returned"]
    rank: int
    time: float


class FunctionRaised(TypedDict):
    """The pieces so far are the pickle of what the function raised."""

    t: Literal["raised"]
    rank: int
    time: float


class Sampling(TypedDict):
    """The rank has a thread that answers questions, with this number of the kernel's."""

    t: Literal["sampling"]
    rank: int
    time: float
    thread: int


class Answer(TypedDict):
    """Where the rank is, because the agent asked; with `deep`, including stack traces and its last collectives."""

    t: Literal["answer"]
    rank: int
    time: float
    deep: bool
    steps: int
    groups: dict[str, tuple[int, int]]
    moved: float
    place: str
    joining: bool
    taken: bool
    stack: NotRequired[str]
    peer: NotRequired[int | None]
    work: NotRequired[bool]
    meeting: NotRequired[Meeting | None]
    recorder: NotRequired[dict[str, RecordedGroup] | None]


class Marked(TypedDict):
    """The rank has noted where its main thread is, before SIGINT."""

    t: Literal["marked"]
    rank: int
    time: float


class Moved(TypedDict):
    """Whether the main thread has moved since then, or is stuck."""

    t: Literal["moved"]
    rank: int
    time: float
    moved: bool
    stuck: bool


PASSED_ON: dict[str, type] = kinds_of(
    Raised,
    SysExit,
    Left,
    Progress,
    Arrivals,
    Unwatched,
    Late,
    Holding,
    Released,
    Piece,
    FunctionReturned,
    FunctionRaised,
)
"""The reports that the controller gets, as events."""

REPORTS: dict[str, type] = {**PASSED_ON, **kinds_of(Sampling, Answer, Marked, Moved)}
"""Every report by its name, the value of `t`."""

"""What happens on a host, as its agent reports it to the controller."""

from __future__ import annotations

from .host_state import Facts, FailureFacts
from .host_state import Interface as Interface  # validate looks the types of Up up here
from .protocol import kinds_of
from .replies import GpuGauges
from .reports import PASSED_ON
from .spawner_messages import Storeless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypedDict

    from typing_extensions import NotRequired
else:
    from .protocol import TypedDict


class Hello(TypedDict):
    """The first line of an agent that dials back: the job's token, the agent's key, its host and protocol version."""

    t: Literal["hello"]
    token: str
    key: str
    host: str
    protocol: int
    resume: NotRequired[str]
    """The name of the session to resume."""


class Bridge(TypedDict):
    """The first line of the program that connects a new ssh connection to an agent: where it looked, and the result."""

    t: Literal["bridge"]
    place: str
    found: bool


class Challenge(TypedDict):
    """The first line of a resumed session, from an agent that waits for the proof to its nonce."""

    t: Literal["challenge"]
    nonce: str


class Resumed(TypedDict):
    """The agent's own proof, and the number of lines it got; the lines that the controller lacks follow."""

    t: Literal["resumed"]
    proof: str
    got: int


class Up(Facts):
    """The agent's first message: the protocol version, which boot and network it is in, and facts about its host."""

    t: Literal["up"]
    protocol: int
    place: str


class NewZygote(TypedDict):
    """The kept zygote does not fit the job, so a new one is being started."""

    t: Literal["new_zygote"]
    why: str


class Pong(TypedDict):
    """The answer to a ping: when it was sent, the host's clock, and the number of lines that the agent got."""

    t: Literal["pong"]
    sent: float
    time: float
    got: int


class Failed(TypedDict):
    """The agent exits because of an internal error."""

    t: Literal["failed"]
    error: str
    traceback: str


class Unseen(TypedDict):
    """The agent could not determine something about its host; sent once for each."""

    t: Literal["unseen"]
    what: str
    why: str
    traceback: str


class Out(TypedDict):
    """A rank wrote to its stdout (1) or stderr (2)."""

    t: Literal["out"]
    rank: int
    stream: Literal[1, 2]
    text: str


class Prompt(TypedDict):
    """A rank waits for input after an incomplete line."""

    t: Literal["prompt"]
    rank: int
    stream: Literal[1, 2]


class Exit(TypedDict):
    """A rank has ended, with an exit code or minus a signal; `stopped_at` is when Muster began to end it."""

    t: Literal["exit"]
    rank: int
    status: int
    time: float
    rss: int
    stopped_at: float | None
    stdin: bool
    facts: NotRequired[FailureFacts]


class Signaled(TypedDict):
    """A scheduler's signal has reached the ranks."""

    t: Literal["signal"]
    number: int
    ranks: list[int]


class Notice(TypedDict):
    """The host is about to go away, in `left` seconds; `why` says who announced it."""

    t: Literal["notice"]
    left: float
    why: str


class Broken(TypedDict):
    """The process that starts ranks was killed, and all ranks of the host with it."""

    t: Literal["broken"]


class HostGauges(TypedDict):
    """The resource usage of the whole host; unavailable fields are missing."""

    load: NotRequired[float]
    memory_used: NotRequired[int]
    memory_total: NotRequired[int]
    cpu_use: NotRequired[float]
    network_in: NotRequired[float]
    network_out: NotRequired[float]
    disk_wait: NotRequired[float]
    gpus: NotRequired[list[GpuGauges]]


class RankGauges(TypedDict):
    """The resource usage of one rank and its children."""

    pid: int
    state: str
    cpu: float | None
    cpu_seconds: float
    memory: int
    gpu_memory: int | None
    read_bytes: int
    write_bytes: int


class Gauges(TypedDict):
    """The resource usage of the host and its ranks, every two seconds."""

    t: Literal["gauges"]
    time: float
    host: HostGauges
    ranks: dict[str, RankGauges]


HELLO: dict[str, type] = kinds_of(Hello)
"""The message that precedes the agent's code on a connection of an agent that dials back."""

RESUMED: dict[str, type] = kinds_of(Bridge, Challenge, Resumed)
"""The messages that precede the others on a connection that resumes a session."""

EVENTS: dict[str, type] = {
    **kinds_of(Up, Pong, NewZygote, Failed, Unseen, Out, Prompt, Exit, Signaled, Notice, Broken, Storeless, Gauges),
    **PASSED_ON,
}
"""Every event by its name, the value of `t`; those of ranks are their reports, forwarded with the rank's number."""

"""What a run and the keeper say to each other over a unix socket; each message is one line of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.controller.links.handed_session import HandedSession
from muster.shared.host_state import Facts
from muster.shared.protocol import kinds_of

if TYPE_CHECKING:
    from typing import Literal, TypedDict
else:
    from muster.shared.protocol import TypedDict


class Entry(TypedDict):
    """A kept agent, as it is listed."""

    id: int
    """The keeper's number for it."""
    host: str
    """The name under which its host is shown."""
    argv: list[str]
    """The command that has started it."""
    bridges: list[list[str]]
    """The commands that reach it over a new connection."""
    remote: bool
    stamp: str
    """Stands for the version of Muster's code that it runs."""
    terms: dict[str, str]
    """The limits of the process that started it, which an agent on the same machine has inherited."""
    python: str
    torch: str
    begin: float
    """When it was started, in seconds since 1970."""
    idle_since: float
    keep: float
    """Seconds without a run after which it ends."""
    lease: float
    job: str
    """The job that uses it now; empty if none does."""


class Gone(TypedDict):
    """A kept agent that was lost while nobody used it."""

    host: str
    argv: list[str]
    why: str


class Kept(TypedDict):
    """The keeper's first message: all its agents."""

    t: Literal["kept"]
    pid: int
    agents: list[Entry]
    gone: list[Gone]


class Agent(TypedDict):
    """An agent that changes hands; the three descriptors of its process are attached."""

    t: Literal["agent"]
    entry: Entry
    session: HandedSession
    facts: Facts
    place: str
    next_id: int
    ranks: list[int]
    pid: int
    born: str
    unsent: str


class Take(TypedDict):
    """A run wants agents; each is answered by `agent` or `missing`."""

    t: Literal["take"]
    ids: list[int]
    job: str


class Missing(TypedDict):
    """An agent that the keeper does not have any more."""

    t: Literal["missing"]
    why: str


class End(TypedDict):
    """End idle agents, and do not keep those that are in use; all of them if no host is named."""

    t: Literal["end"]
    hosts: list[str]


class Measure(TypedDict):
    """Ask how much memory the idle agents use."""

    t: Literal["measure"]


class Measured(TypedDict):
    """The memory of idle agents and their zygotes in bytes, by number."""

    t: Literal["measured"]
    bytes: dict[str, int]


class Done(TypedDict):
    """The keeper has an agent, or has ended those that it was asked to end."""

    t: Literal["done"]


FROM_RUN: dict[str, type] = kinds_of(Take, Agent, End, Measure)
FROM_KEEPER: dict[str, type] = kinds_of(Kept, Agent, Missing, Measured, Done)

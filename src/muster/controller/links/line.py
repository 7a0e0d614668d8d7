"""What a link needs of a connection to its agent, and how it gets another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from muster.errors import MusterError

if TYPE_CHECKING:
    from muster.controller.links.child_process import StartedChild


class WayBack(Protocol):
    """How a link gets a new connection to its agent."""

    boxed: bool
    """Whether a container program, or Kubernetes, is between the connection and the agent."""
    wait: float
    """Seconds that the agent waits for a new connection when one has closed; its lease may be shorter."""

    def begin(self) -> None:
        """Try until one works; does nothing if it tries already."""
        ...

    def end(self, keep: object = None) -> None:
        """Stop trying, and drop all new connections but the one to `keep`."""
        ...


class Line(Protocol):
    """The connection below a link: the pipes of a transport, or a socket that the agent opened."""

    def send(self, data: bytes) -> None:
        """Write without blocking."""
        ...

    def close(self) -> None:
        """Drop the connection."""
        ...

    @property
    def child(self) -> StartedChild | None:
        """The process whose pipes are the connection; None for a socket."""
        ...

    def leave(self) -> None:
        """Close the connection when what was sent has left, or after a moment."""
        ...

    @property
    def way_back(self) -> WayBack | None:
        """How the agent is reached again if this first connection breaks; None if that is its end."""
        ...

    async def explain(self, noise: str) -> MusterError:
        """Explain why the agent did not start, from how the transport ended and its output, `noise`."""
        ...

    @property
    def why_lost(self) -> str:
        """What it means if an established connection closes."""
        ...

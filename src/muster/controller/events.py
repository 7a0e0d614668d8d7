"""The event stream of a job: subscribers choose events by their class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from muster.controller.debug_log import guarded, internal_error
from muster.shared.protocol import kind_of

if TYPE_CHECKING:
    from typing import TypedDict

    from muster.controller.links.link import AgentLink
else:
    from muster.shared.protocol import TypedDict

Event = Mapping[str, Any]
"""A validated event of a host; subscribers get it as the class they subscribed to."""

Message = TypeVar("Message")


class HostChange(TypedDict):
    """A host became silent, is back, or is lost; sent by its link."""

    t: Literal["host"]
    state: Literal["up", "silent", "lost"]


class Guard:
    """Keeps an error in an observer from ending the job: reports it once per observer, and the job continues."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._failed: set[str] = set()

    def __call__(self, what: str) -> AbstractContextManager[None]:
        """Guard the work of an observer; `what` names the part of Muster that may be wrong after an error."""

        def report(error: Exception) -> None:
            if what not in self._failed:
                self._failed.add(what)
                self._warn(f"{what} may be wrong from now on; the job keeps running: {internal_error(error)}")

        return guarded(report)


class EventStream:
    """Passes each event of a host to the subscribers of its kind, in the order of their subscriptions."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._handlers: dict[str, list[tuple[Callable[[AgentLink, Any], None], str]]] = {}

    def subscribe(
        self, message: type[Message], handler: Callable[[AgentLink, Message], None], *, observer: str = ""
    ) -> None:
        """Call `handler` with each event of this class; errors of an `observer` are guarded."""
        self._handlers.setdefault(kind_of(message), []).append((handler, observer))

    def unsubscribe(self, subscriber: object) -> None:
        """Drop all handlers that are methods of `subscriber`."""
        for kind, handlers in self._handlers.items() if subscriber is not None else ():
            self._handlers[kind] = [one for one in handlers if getattr(one[0], "__self__", None) is not subscriber]

    def publish(self, link: AgentLink, event: Event) -> None:
        """Pass an event to its subscribers."""
        for handler, observer in self._handlers.get(event["t"], ()):
            if observer:
                with self.guard(observer):
                    handler(link, event)
            else:
                handler(link, event)

"""The stream of a job's events: whoever wants one kind of them subscribes to it by its class."""

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
"""An event of a host, validated; subscribers see it as the class they have subscribed to."""

Message = TypeVar("Message")


class HostChange(TypedDict):
    """A host has not been heard for a moment, is heard again, or is lost; made by its link."""

    t: Literal["host"]
    state: Literal["up", "silent", "lost"]


class Guard:
    """Keeps a bug in what only observes a job from ending it: reports it once per observer, and the job goes on."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._failed: set[str] = set()

    def __call__(self, what: str) -> AbstractContextManager[None]:
        """Around the work of an observer; `what` is the part of Muster that may be wrong after an error."""

        def report(error: Exception) -> None:
            if what not in self._failed:
                self._failed.add(what)
                self._warn(f"{what} may be wrong from here on, the job goes on: {internal_error(error)}")

        return guarded(report)


class EventStream:
    """Passes each event of a host to those who have subscribed to its kind, in the order of their subscriptions."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._handlers: dict[str, list[tuple[Callable[[AgentLink, Any], None], str]]] = {}

    def subscribe(
        self, message: type[Message], handler: Callable[[AgentLink, Message], None], *, observer: str = ""
    ) -> None:
        """Have `handler` called with each event of this class; errors of an `observer` are guarded."""
        self._handlers.setdefault(kind_of(message), []).append((handler, observer))

    def unsubscribe(self, subscriber: object) -> None:
        """Drop all handlers that are methods of `subscriber`."""
        for kind, handlers in self._handlers.items() if subscriber is not None else ():
            self._handlers[kind] = [one for one in handlers if getattr(one[0], "__self__", None) is not subscriber]

    def publish(self, link: AgentLink, event: Event) -> None:
        """Pass an event on."""
        for handler, observer in self._handlers.get(event["t"], ()):
            if observer:
                with self.guard(observer):
                    handler(link, event)
            else:
                handler(link, event)

"""The objects of the cluster: kept with versions, selected, and watched."""

from __future__ import annotations

import asyncio
import copy
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kube.http_server import Json

Change = Literal["ADDED", "MODIFIED", "DELETED"]
Key = tuple[str, str, str]
"""Resource (`pods`), namespace, name."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """A change of an object, as it was then."""

    version: int
    change: Change
    resource: str
    object: Json


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which objects a request is about; empty strings select all."""

    resource: str
    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def matches(self, resource: str, found: Json) -> bool:
        """Whether an object belongs to it."""
        meta = found["metadata"]
        return (
            resource == self.resource
            and self.namespace in ("", meta.get("namespace", ""))
            and all(_term_holds(term, meta.get("labels", {})) for term in _terms(self.labels))
            and all(_field_holds(term, found) for term in self.fields.split(",") if term)
        )


def _terms(selector: str) -> Iterator[str]:
    """The terms of a selector, divided at commas outside of parentheses."""
    depth, term = 0, ""
    for letter in selector + ",":
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if term.strip():
                yield term.strip()
            term = ""
        else:
            term += letter


def _term_holds(term: str, labels: Mapping[str, str]) -> bool:
    for sign, equal in (("!=", False), ("==", True), ("=", True)):
        if sign in term:
            name, _, value = term.partition(sign)
            return (labels.get(name.strip()) == value.strip()) is equal
    name, _, rest = term.partition(" ")
    if rest:
        values = [value.strip() for value in rest[rest.index("(") + 1 : rest.rindex(")")].split(",")]
        return (labels.get(name) in values) is not rest.strip().startswith("notin")
    return term[1:] not in labels if term.startswith("!") else term in labels


def _field_holds(term: str, found: Json) -> bool:
    path, _, value = term.replace("==", "=").partition("=")
    current: Any = found
    for part in path.rstrip("!").split("."):
        current = current.get(part, "") if isinstance(current, dict) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return (current == value) is not path.endswith("!")


@dataclass
class Objects:
    """All objects, and the history of their changes, from which a watch continues."""

    version: int = 100
    _found: dict[Key, Json] = field(default_factory=dict[Key, Json])
    _events: list[Event] = field(default_factory=list[Event])
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        """A copy of an object."""
        return copy.deepcopy(self._found.get((resource, namespace, name)))

    def select(self, selection: Selection) -> list[Json]:
        """Copies of all objects of a selection, by name."""
        chosen = sorted((key, found) for key, found in self._found.items() if selection.matches(key[0], found))
        return [copy.deepcopy(found) for _, found in chosen]

    async def create(self, resource: str, new: Json) -> Json:
        """Add an object; the caller has made sure that its name is new."""
        meta = new.setdefault("metadata", {})
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = now()
        return await self._put(resource, new, "ADDED")

    async def update(self, resource: str, namespace: str, name: str, change: Callable[[Json], None]) -> Json | None:
        """Change an object if it still exists."""
        found = self.get(resource, namespace, name)
        if found is None:
            return None
        before = copy.deepcopy(found)
        change(found)
        return found if found == before else await self._put(resource, found, "MODIFIED")

    async def delete(self, resource: str, namespace: str, name: str) -> None:
        """Remove an object if it still exists."""
        found = self._found.get((resource, namespace, name))
        if found is not None:
            await self._put(resource, copy.deepcopy(found), "DELETED")

    async def _put(self, resource: str, new: Json, change: Change) -> Json:
        self.version += 1
        meta = new["metadata"]
        meta["resourceVersion"] = str(self.version)
        key = (resource, meta.get("namespace", ""), meta["name"])
        if change == "DELETED":
            del self._found[key]
        else:
            self._found[key] = new
        self._events.append(Event(version=self.version, change=change, resource=resource, object=copy.deepcopy(new)))
        async with self._changed:
            self._changed.notify_all()
        return copy.deepcopy(new)

    async def watch(self, selection: Selection, since: int) -> AsyncGenerator[Event, None]:
        """Changes of a selection after a version, without end."""
        position = next((n for n, event in enumerate(self._events) if event.version > since), len(self._events))
        while True:
            while position < len(self._events):
                event = self._events[position]
                position += 1
                if selection.matches(event.resource, event.object):
                    yield event
            async with self._changed:
                while position == len(self._events):
                    await self._changed.wait()


def now() -> str:
    """The time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

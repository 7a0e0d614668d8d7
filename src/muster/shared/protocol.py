"""Defines and validates all messages between processes.

Messages are defined as TypedDicts: `requests.py` and `replies.py` (controller to agent and back), `events.py` (agent to
controller), `reports.py` (rank to agent) and `spawner_messages.py` (agent and spawner). A type checker reads the
annotations, and `validate` reads the same annotations at run time. Hosts may have Python 3.9 and should not spend time
on importing `typing`, so the base class here only replaces the real one.
"""

from __future__ import annotations

import sys

from .wire import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    Check = Callable[[Any], bool]
    Field = tuple[str, bool, frozenset[type], Check | None, str]


class TypedDict(dict):  # type: ignore[type-arg]
    """Replaces typing.TypedDict at run time, where messages are plain dicts and only annotations matter."""


def kind_of(message: type) -> str:
    """The name of a message class on the wire: the annotation of its field `t`."""
    return message.__annotations__["t"][len("Literal['") : -2]


def kinds_of(*messages: type) -> dict[str, type]:
    """Message classes by their names on the wire."""
    return {kind_of(message): message for message in messages}


_PLAIN: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bool": (bool,),
    "None": (type(None),),
}
_EVERYTHING = ("Any", "object")
_LARGEST = {"int": 1 << 63, "float": 1e15}
"""Numbers beyond these are refused, and so are NaN and infinity: no clock, size or counter has such a value."""
_fields: dict[type, tuple[Field, ...]] = {}
"""Cached fields of message classes: name, whether it is required, types, check of the contents, annotation."""


def validate(message: Any, kinds: Mapping[str, type], key: str = "t", *, strict: bool = False) -> None:
    """Raise ProtocolError unless `message` is one of `kinds`, which `key` names, with all its fields.

    If `strict`, it must not have any other fields, either.
    """
    try:
        kind = kinds[message[key]]
    except (KeyError, TypeError):
        raise ProtocolError(_unknown(message, key)) from None
    fault = _fault(message, kind, (key, "re") if strict else None)
    if fault:
        raise ProtocolError(f"message `{message[key]}`{fault}")


def check_reply(reply: Any, kind: type, request: str) -> None:
    """Raise ProtocolError unless `reply` has the fields of `kind`, which answers `request`."""
    if type(reply) is not dict:
        raise ProtocolError(f"the reply to `{request}` must be a JSON object, not {type(reply).__name__}")
    validate({**reply, "t": f"reply to {request}"}, {f"reply to {request}": kind}, strict=True)


def fields(kind: type) -> tuple[Field, ...]:
    """The fields of a message class, as `validate` needs them."""
    found: list[Field] = []
    for name, annotation in annotations_of(kind).items():
        if annotation.startswith("Literal[") and name == "t":
            continue  # the name of the message, which has been checked
        required = not annotation.startswith("NotRequired[")
        text = annotation if required else annotation[len("NotRequired[") : -1]
        types, check = _compile(text, vars(sys.modules[kind.__module__]))
        found.append((name, required, types, check, text))
    _fields[kind] = tuple(found)
    return _fields[kind]


def annotations_of(kind: type) -> dict[str, str]:
    """The annotations of a message class and of those it extends, as text."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found.update(getattr(base, "__annotations__", {}))
    return found


def _unknown(message: Any, key: str) -> str:
    if not isinstance(message, dict):
        return f"a message must be a JSON object, not {type(message).__name__}"
    if key not in message:
        return f"a message lacks the field `{key}`"
    return "unknown message `{}`".format(_short(message[key]).strip("'"))


def _short(value: Any) -> str:
    """A value of the other side for an error message, which it must not fill."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _fault(message: Any, kind: type, beside: Collection[str] | None) -> str:
    """How a message differs from its class, beside whose fields it may have these, or any; empty if it is valid."""
    known = 0
    for name, required, types, check, annotation in _fields.get(kind) or fields(kind):
        if name in message:
            known += 1
            value = message[name]
            if (types and type(value) not in types) or (check is not None and not check(value)):
                return f": the field `{name}` must be {annotation}, not {_short(value)}"
        elif required:
            return f" lacks the field `{name}`"
    if beside is not None and len(message) > known + sum(map(message.__contains__, beside)):
        unknown = message.keys() - {field[0] for field in _fields[kind]} - set(beside)
        return f" has the unknown field {ascii(min(unknown))[:60]}"
    return ""


# --- annotations -------------------------------------------------------------------------------------------------


def _compile(annotation: str, space: Mapping[str, Any]) -> tuple[frozenset[type], Check | None]:
    """The exact types that an annotation allows (empty for any), and a check of the contents of a value."""
    types: set[type] = set()
    checks: dict[type, Check] = {}
    for part in _split(annotation, " | "):
        head, _, inner = part.partition("[")
        if head in _EVERYTHING:
            return frozenset(), None
        if head in _PLAIN:
            types.update(_PLAIN[head])
            checks.update(dict.fromkeys(_PLAIN[head], _is_at_most(_LARGEST[head])) if head in _LARGEST else {})
        elif head == "Literal":
            words = _split(inner[:-1], ", ")
            kind = int if words[0].isdecimal() else str
            types.add(kind)
            checks[kind] = _one_of([kind(word.strip("'\"")) for word in words])
        elif head in ("list", "Sequence"):
            types.add(list)
            _add(checks, list, _items(*_compile(inner[:-1], space)))
        elif head == "tuple":
            types.add(list)
            checks[list] = _exactly([_compile(item, space) for item in _split(inner[:-1], ", ")])
        elif head in ("dict", "Mapping"):
            types.add(dict)
            _add(checks, dict, _values(*_compile(_split(inner[:-1], ", ")[1], space)))
        else:
            types.add(dict)
            checks[dict] = _is_message(space[head])
    if not checks:
        return frozenset(types), None
    if len(set(checks.values())) == 1 and types == checks.keys():
        return frozenset(types), next(iter(checks.values()))
    return frozenset(types), lambda value: type(value) not in checks or checks[type(value)](value)


def _add(checks: dict[type, Check], kind: type, check: Check | None) -> None:
    if check is not None:
        checks[kind] = check


def _split(text: str, separator: str) -> list[str]:
    """Split an annotation at separators outside of brackets."""
    parts = [""]
    for piece in text.split(separator):
        whole = parts[-1].count("[") == parts[-1].count("]")
        if whole and parts[-1]:
            parts.append(piece)
        else:
            parts[-1] += (separator if parts[-1] else "") + piece
    return parts


def _one_of(words: list[int | str]) -> Check:
    return lambda value: value in words


def _is_at_most(largest: float) -> Check:
    return lambda value: -largest < value < largest


def _items(types: frozenset[type], check: Check | None) -> Check | None:
    if not types:
        return None
    if check is None:
        return lambda value: types.issuperset(map(type, value))
    return lambda value: types.issuperset(map(type, value)) and all(map(check, value))


def _exactly(items: list[tuple[frozenset[type], Check | None]]) -> Check:
    def check(value: Any) -> bool:
        return len(value) == len(items) and all(
            type(one) in types and (inside is None or inside(one))
            for one, (types, inside) in zip(value, items)  # noqa: B905, Python 3.9
        )

    return check


def _values(types: frozenset[type], check: Check | None) -> Check | None:
    of_items = _items(types, check)
    return None if of_items is None else lambda value: of_items(value.values())


def _is_message(kind: type) -> Check:
    return lambda value: not _fault(value, kind, ())

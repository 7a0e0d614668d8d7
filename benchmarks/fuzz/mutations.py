"""Mutates messages: fields replaced, dropped, renamed or moved to another rank, and bytes changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from random import Random
from typing import Any, cast

_NUMBERS: Sequence[Any] = (
    *(0, 1, -1, 2, 3, 7, 63, 64, 255, 256, -9, -15, -64, -65, -1000, 99999, 2**31, -(2**31), 2**53, 2**62, -(2**62)),
    *(2**63, -(2**63), 2**64, 10**30, 10**400, 0.0, -0.0, 0.5, -1.5, 1e-320, 1e9, 1.7e9, 1e12, -1e12, 1e14, -1e14),
    *(1e300, float("nan"), float("inf"), float("-inf"), True, False, None),
)
_TEXTS: Sequence[Any] = (
    *("", " ", "0", "1", "-1", "00", "1e3", "\u0663", "nan", "x", "a.py:3", "a.py:3 in f", ":", "::", "/", "\n", "\r"),
    *(
        "\0",
        "../../../../etc/x",
        "/../..",
        "~",
        "a" * 5000,
        "\ud800",
        "\udcff",
        "\udc00",
        "\u2028",
        "\U0001f600",
        "%s{0}",
    ),
    *("\x1b]0;x\x07", "\x1b[2J", "AA==", "A", "====", "Traceback (most recent call last):\n", "ValueError: bad"),
    *("10.0.0.1", "::1", "10.0.0.1:29500", "localhost", "abc", "out", "up", "exit", "store", "rank 0", "S", "T", "Xid"),
)
_OTHERS: Sequence[Any] = ([], {}, [[]], [None], {"": None}, {"0": {}}, {"0": [1, 2]}, {"9": 1}, [1, 2], ["a"], [[1, 2]])
JUNK = (*_NUMBERS, *_TEXTS, *_OTHERS)
_KEYS = ("t", "re", "do", "id", "rank", "ranks", "time", "text", "stream", "name", "state", "host", "extra", "\ud800")


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values in a message."""
    children: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        children = cast("dict[Any, Any]", value).items()
    elif isinstance(value, list):
        children = enumerate(cast("list[Any]", value))
    for key, child in children:
        yield (*place, key)
        yield from _places(child, (*place, key))


def _replacement(old: Any, random: Random) -> Any:
    """Another value, most often one of the same type, so that it passes for valid."""
    if random.random() < 0.85:
        if isinstance(old, (int, float)) and not isinstance(old, bool):
            same = [value for value in _NUMBERS if type(value) is type(old)]
            return random.choice([value for value in same if abs(value) < 1e14] if random.random() < 0.9 else same)
        if isinstance(old, str):
            return random.choice(_TEXTS)
        if isinstance(old, bool):
            return not old
        if isinstance(old, list):
            items: list[Any] = [*old, *old] if random.random() < 0.5 else []
            return items
    return deepcopy(random.choice(JUNK))


def _mutate_value(message: Any, random: Random, spared: Sequence[str]) -> None:
    places = [place for place in _places(message) if place[0] not in spared]
    if not places:
        return
    *path, last = random.choice(places)
    holder = message
    for key in path:
        holder = holder[key]
    act = random.random()
    if act < 0.8:
        holder[last] = _replacement(holder[last], random)
    elif act < 0.9:
        del holder[last]
    elif isinstance(holder, dict):
        holder[random.choice([key for key in (*_KEYS, *_TEXTS) if key not in spared])] = holder[last]
    else:
        holder.append(holder[last])


def mutated(message: Any, random: Random, spared: Sequence[str] = ()) -> Any:
    """A copy of a message with one to three changes, none of them in the fields that are `spared`."""
    message = deepcopy(message)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _mutate_value(message, random, spared)
    return message


def mutated_line(message: Any, random: Random) -> bytes:
    """A mutated message as a line; one in eight is damaged as bytes, too."""
    line = json.dumps(mutated(message, random), separators=(",", ":")).encode()
    if random.random() < 0.125:
        line = damaged(line, random)
    return line.replace(b"\n", b" ") + b"\n"


def damaged(line: bytes, random: Random) -> bytes:
    """Bytes that were cut, turned around, or have others in between or before them."""
    at, act = random.randrange(len(line) + 1), random.randrange(6)
    if act == 0:
        return line[:at]
    if act == 1:
        return line[:at] + bytes([random.randrange(256)]) + line[at + 1 :]
    if act == 2:
        return line[:at] + random.randbytes(8) + line[at:]
    if act == 3:
        return b"[" * random.choice((10, 100_000)) + line
    if act == 4:
        return line[:at] + b"9" * random.choice((20, 6000)) + line[at:]
    return line[at:] + line[:at]

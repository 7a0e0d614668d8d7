"""Dataclasses from what JSON holds, checked against their annotations: a file may be damaged, foreign or hostile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from muster.text import printable_lines

_LARGEST = 1 << 53
"""Integers beyond this are not exact in JSON; no number of a job is that large."""


def decode(kind: type[Any], data: Any) -> Any:
    """A dataclass from its fields; those that it does not know are ignored. ValueError for a wrong or missing value."""
    try:
        return _decoder(kind)(data)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from None


@cache
def _decoder(hint: Any) -> Callable[[Any], Any]:
    """What checks and converts a value for this annotation."""
    if is_dataclass(hint):
        return _dataclass(hint)
    origin, inside = get_origin(hint), get_args(hint)
    if origin is tuple:
        item = _decoder(inside[0])
        return lambda value: tuple(item(part) for part in _checked(value, type(value) in (list, tuple)))
    if origin is Literal:
        return lambda value: _checked(value, value in inside)
    if origin is UnionType:
        (other,) = (part for part in inside if part is not NoneType)
        known = _decoder(other)
        return lambda value: None if value is None else known(value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key = _text if inside[0] is str else inside[0]  # JSON writes the numbers of ranks as text
        item = _decoder(inside[1])
        return lambda value: {key(name): item(part) for name, part in _of(dict, value).items()}
    plain: dict[Any, Callable[[Any], Any]] = {str: _text, bool: _flag, int: _integer, float: _number}
    return plain[hint]


def _dataclass(kind: Any) -> Callable[[Any], Any]:
    decoders = {name: _decoder(hint) for name, hint in get_type_hints(kind).items()}

    def convert(value: Any) -> Any:
        data = _of(dict, value)
        return kind(**{name: known(data[name]) for name, known in decoders.items() if name in data})

    return convert


def _of(kind: type[Any], value: Any) -> Any:
    return _checked(value, type(value) is kind)


def _checked(value: Any, is_valid: bool) -> Any:
    if not is_valid:
        raise ValueError(f"invalid value of type {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    """A text without characters that a terminal would obey."""
    return printable_lines(_of(str, value))


def _flag(value: Any) -> bool:
    return _of(bool, value)


def _integer(value: Any) -> int:
    return _checked(value, type(value) is int and abs(value) < _LARGEST)


def _number(value: Any) -> float:
    return _checked(value, type(value) in (int, float) and isfinite(value) and abs(value) < _LARGEST)

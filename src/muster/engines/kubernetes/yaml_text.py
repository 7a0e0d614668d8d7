"""Writes YAML that people read: blocks, short lists on one line, and comments. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

Value = str | int | bool | None | Mapping[str, "Value"] | Sequence["Value"]
"""What a document consists of."""

_WIDTH = 110
"""Characters up to which a list of words stays on one line."""

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*")
"""Strings that need no quotes, unless YAML 1.1 reads them as something else."""

_NOT_STRINGS = re.compile(r"y|n|yes|no|on|off|true|false|null|~", re.IGNORECASE)


def yaml_text(document: Mapping[str, Value], comments: Mapping[str, str]) -> str:
    """The document, with a comment before each key whose path (`spec.template.spec`, without indices) has one."""
    return "\n".join(_block(document, "", comments)) + "\n"


def _block(value: Value, path: str, comments: Mapping[str, str]) -> Iterator[str]:
    """The lines of a mapping or a list, without indentation."""
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, Value]", value).items():
            below = f"{path}.{key}" if path else key
            if below in comments:
                yield from (f"# {line}" for line in comments[below].splitlines())
            yield from _entry(f"{_scalar(key)}:", inner, below, comments)
    else:
        for inner in cast("Sequence[Value]", value):
            if isinstance(inner, Mapping) and inner:
                lines = list(_block(inner, path, comments))
                at = next(number for number, line in enumerate(lines) if not line.startswith("#"))
                yield from lines[:at]  # a comment about the first key comes before the dash
                yield f"- {lines[at]}"
                yield from (f"  {line}" for line in lines[at + 1 :])
            else:
                yield f"- {_flow(inner)}"


def _entry(head: str, value: Value, path: str, comments: Mapping[str, str]) -> Iterator[str]:
    """The lines of one key of a mapping."""
    if isinstance(value, str | int | bool | None) or not value:
        yield f"{head} {_flow(value)}"
        return
    is_list = not isinstance(value, Mapping)
    line = f"{head} {_flow(value)}"
    if is_list and len(line) <= _WIDTH and all(isinstance(each, str | int | bool) for each in value):
        yield line
        return
    yield head
    yield from (line if is_list else f"  {line}" for line in _block(value, path, comments))


def _flow(value: Value) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, str | int | bool | None):
        return _scalar(value)
    return "[" + ", ".join(map(_flow, value)) + "]"


def _scalar(value: str | int | bool | None) -> str:
    """A scalar; JSON's notation is valid YAML, and strings that look like something else are quoted."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _NOT_STRINGS.fullmatch(value):
        return value
    return "".join(map(_visible, json.dumps(value, ensure_ascii=False)))


def _visible(character: str) -> str:
    """A character of a quoted string; YAML allows no control characters, and people would not see others."""
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"

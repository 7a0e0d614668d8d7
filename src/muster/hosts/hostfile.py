"""Hostfiles in the formats of MPI, DeepSpeed and PBS."""

from __future__ import annotations

import re
from dataclasses import replace
from os import PathLike

from muster.errors import UsageError
from muster.hosts.host import Host
from muster.hosts.hostlist import (
    Mention,
    checked_port,
    checked_slots,
    checked_user,
    merge,
    read_mentions,
)
from muster.hosts.name_ranges import MAX_HOSTS
from muster.hosts.reader import Reader
from muster.user_file import read_user_file

_EXAMPLE = "write one host per line, such as `gpu01 slots=8`, `gpu[01-04]:8` or `gpu01`"
_SETTING = re.compile(r"(?<!\s)\s+([A-Za-z][A-Za-z_-]*)\s*=\s*([^\s=]*)")
_SLOTS_MOST = ("max_slots", "max-slots")  # Open MPI writes both
_SETTINGS = ("slots", *_SLOTS_MOST, "user", "port")


def read_hostfile(path: str | PathLike[str]) -> tuple[Host, ...]:
    """Read a hostfile; errors give the file and the line and point at the wrong character.

    Each line holds a host as in `-H`, which covers MPICH's `host:4`, optionally followed by settings of Open MPI and
    DeepSpeed: `slots=4`, `max_slots=8`, `user=alice`, and `port=2222`. `max_slots` is checked and has no other
    effect, because no host gets more ranks than it has slots. `#` starts a comment. A host on several lines
    (PBS_NODEFILE) is one host: see `parse_hosts`.
    """
    mentions: list[Mention] = []
    for number, line in enumerate(_read_lines(path), start=1):
        content = line.split("#", 1)[0].rstrip()
        if content:
            mentions += _read_line(content, f"{path}:{number}", room=MAX_HOSTS - len(mentions))
    if not mentions:
        raise UsageError(f"{path}: the hostfile lists no hosts", hint=_EXAMPLE)
    return merge(mentions)


def _read_lines(path: str | PathLike[str]) -> list[str]:
    try:
        # utf-8-sig: an editor on Windows may have added a byte order mark before the first host.
        return read_user_file(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    except FileNotFoundError:
        raise UsageError(f"{path}: hostfile not found", hint=_EXAMPLE) from None
    except OSError as error:
        raise UsageError(f"{path}: could not read the hostfile ({error.strerror})", hint=_EXAMPLE) from None
    except ValueError:  # bytes that are not UTF-8 inside the file, or a NUL in its name
        raise UsageError(f"{path}: the hostfile is not a text file", hint=_EXAMPLE) from None


def _read_line(content: str, source: str, *, room: int) -> list[Mention]:
    first = _SETTING.search(content)
    mentions = read_mentions(Reader(content, source, end=first.start() if first else None), room=room)
    if first is None:
        return mentions
    settings = _read_settings(Reader(content, source), first.start())
    return [replace(mention, host=_with_settings(mention, settings)) for mention in mentions]


def _read_settings(reader: Reader, start: int) -> dict[str, tuple[str, int]]:
    """Return each setting's value and its position."""
    settings: dict[str, tuple[str, int]] = {}
    reader.at = start
    while reader.next:
        match = _SETTING.match(reader.text, reader.at)
        if match is None:
            reader.skip_spaces()
            raise reader.error("settings have the form NAME=VALUE", hint=_EXAMPLE)
        name, value = match.groups()
        if name not in _SETTINGS:
            hint = f"use {', '.join(_SETTINGS)}; remove everything else"
            raise reader.error(f"unknown setting `{name}`", at=match.start(1), hint=hint)
        if name in settings:
            raise reader.error(f"`{name}` is set twice", at=match.start(1), hint=_EXAMPLE)
        settings[name] = (value, match.start(2))
        reader.at = match.end()
    return settings


def _with_settings(mention: Mention, settings: dict[str, tuple[str, int]]) -> Host:
    host, reader = mention.host, mention.reader
    for name, (value, at) in settings.items():
        said = getattr(host, name, None)
        if said is not None:
            raise reader.error(f"{name} of {host.name} is already set to {said}", at=at, hint=_EXAMPLE)
        if name == "user":
            host = replace(host, user=checked_user(reader, value, at))
            continue
        digits = _digits(reader, name, value, at)
        if name == "port":
            host = replace(host, port=checked_port(reader, digits, at))
        elif name == "slots":
            host = replace(host, slots=checked_slots(reader, digits, at, host.name))
    for name in _SLOTS_MOST:
        value, at = settings.get(name, ("", 0))
        if value and host.slots is not None and int(value) < host.slots:
            raise reader.error(f"{name} must be at least the {host.slots} slots", at=at, hint=_EXAMPLE)
    return host


def _digits(reader: Reader, name: str, value: str, at: int) -> str:
    number = Reader(reader.text, reader.source, end=at + len(value))
    number.at = at
    digits = number.number(f"number of `{name}`", _EXAMPLE)
    if number.next:
        raise number.error(f"`{name}` must be a number", hint=_EXAMPLE)
    return digits

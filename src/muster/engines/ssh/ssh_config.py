"""Parses the output of `ssh -G`: what the user's ssh would do for a host. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SshConfig:
    """The settings needed to set up a login."""

    keys: tuple[str, ...]
    """Private keys that ssh would offer, in order; they may not exist."""
    known_hosts: str
    """The file to which ssh adds host keys."""
    recorded_as: str
    """The name of the host in that file: `name`, `[name]:2222` or its alias."""


def read_config(text: str) -> SshConfig:
    """Parse the output of `ssh -G host`."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        values.setdefault(name.lower(), []).append(value)
    host = values.get("hostname", [""])[0]
    port = values.get("port", ["22"])[0]
    alias = values.get("hostkeyalias", [""])[0]
    files = values.get("userknownhostsfile", ["~/.ssh/known_hosts"])[0].split()
    return SshConfig(
        keys=tuple(os.path.expanduser(_unquote(path)) for path in values.get("identityfile", [])),
        known_hosts=os.path.expanduser(_unquote(files[0])) if files else os.path.expanduser("~/.ssh/known_hosts"),
        recorded_as=alias or (host if port == "22" else f"[{host}]:{port}"),
    )


def _unquote(path: str) -> str:
    return path.strip('"')

"""What the user's own ssh would do for a host: the output of `ssh -G`, read. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SshConfig:
    """The settings that setting up a login needs."""

    keys: tuple[str, ...]
    """Private keys ssh would offer, in its order; they may not exist."""
    known_hosts: str
    """The file to which ssh adds the keys of hosts."""
    recorded_as: str
    """The name under which a host's key is kept there: `name`, `[name]:2222` or its alias."""


def read_config(text: str) -> SshConfig:
    """Parse what `ssh -G host` printed."""
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

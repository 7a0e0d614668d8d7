"""What names and addresses stand for on this host, and how long it takes to look them up."""

from __future__ import annotations

import os
import socket
import time

from .reading import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..check_probes import Question

_SLOW = 0.5
_MOST_ADDRESSES = 8


def master(ask: Question) -> list[str] | None:
    """Return what the address of rank 0 stands for here; None where the user chose none."""
    return _addresses(ask["master"]) if ask["master"] else None


def own_name(ask: Question) -> dict[str, Any]:
    """Return this host's name, what it stands for, and how /etc/hosts lists it."""
    name = os.uname().nodename
    entries = [line.partition("#")[0].split() for line in read("/etc/hosts").splitlines()]
    mine = [words for words in entries if name in words[1:] and not words[0].startswith("::ffff:")]
    return {
        "name": name,
        "addresses": _addresses(name),
        "listed": [words[0] for words in mine],
        "shared": [words[0] for words in mine if "localhost" in words],
    }


def _addresses(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def names(ask: Question) -> dict[str, Any]:
    """Return the slowest lookup: of this host's name, or of peers' addresses, which torch does for each connection."""
    slowest, what = 0.0, ""
    addresses = [address for found in ask["peers"].values() for address in found]
    for word in [os.uname().nodename, *addresses[:_MOST_ADDRESSES]]:
        taken = _lookup_seconds(word)
        if taken > _SLOW:  # a busy host is held up once, and a slow resolver every time
            taken = min(taken, _lookup_seconds(word))
        if taken > slowest:
            slowest, what = taken, word
        if slowest > _SLOW:
            break
    return {"seconds": slowest, "what": what}


def _lookup_seconds(word: str) -> float:
    begin = time.monotonic()
    try:
        if word == os.uname().nodename:
            socket.getaddrinfo(word, None)
        else:
            socket.getnameinfo((word, 0), 0)
    except OSError:
        pass
    return time.monotonic() - begin

"""Random damage to JSON, bytes and files, from a seed."""

from __future__ import annotations

import copy
import json
import os
import shutil
import socket
from pathlib import Path
from random import Random
from typing import Any

ESCAPES = "\x1b]52;c;AAAA\x07\x1b[2J\r\nfake line\udcff\0"

JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1 << 40, -(1 << 63), 10**400, 0.5, -1e300, float("nan"), float("inf")),
    *("", "x", ESCAPES, "é" * 5000, "../../../etc/passwd", "running", "ended", "1e9999", "-oProxyCommand=x"),
    *json.loads('[[], {}, [[]], [null], {"": {}}, [1, "a", {}], {"0": 1}, {"a": [{}]}]'),
)


def changed(rng: Random, data: Any) -> Any:
    """A copy of some JSON with one to three values replaced, removed, repeated or put one level deeper."""
    at: Any
    key: Any
    data = copy.deepcopy(data)
    for _ in range(rng.randint(1, 3)):
        found = [*_containers(data)]
        if not found:
            return copy.deepcopy(rng.choice(JUNK))
        at = rng.choice(found)
        is_list = type(at) is list
        keys: list[Any] = [*range(len(at))] if is_list else [*at]
        key = rng.choice(keys)
        match rng.randrange(6):
            case 0:
                del at[key]
            case 1:
                at[key] = [at[key]]
            case 2 if is_list:
                at.extend(at[:50])
            case _:
                at[key] = copy.deepcopy(rng.choice(JUNK))
    return data


def _containers(data: Any) -> list[Any]:
    """Every object and list in some JSON that is not empty."""
    is_object, is_list = type(data) is dict, type(data) is list
    inside: list[Any] = [*data.values()] if is_object else [*data] if is_list else []
    return [*([data] if inside else []), *(found for part in inside for found in _containers(part))]


def damaged(rng: Random, data: bytes) -> bytes:
    """Bytes, cut, doubled, with some changed, or replaced by something else."""
    match rng.randrange(7):
        case 0:
            return data[: rng.randrange(len(data) + 1)]
        case 1:
            return data + data
        case 2:
            return b"[" * 100_000
        case 3:
            return rng.randbytes(rng.randrange(2000))
        case 4:
            return b'{"a":' * 30_000
        case _:
            spoiled = bytearray(data or b"x")
            for _ in range(rng.randint(1, 8)):
                spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
            return bytes(spoiled)


def dumped(data: Any) -> bytes:
    """JSON as bytes; what is no Unicode is escaped."""
    return json.dumps(data).encode()


def spoil(rng: Random, path: Path) -> None:
    """Damage a file in any way: its JSON, its bytes, or what it is."""
    kind = rng.randrange(10)
    is_file = path.is_file() and not path.is_symlink()
    if kind < 6 and is_file and path.suffix == ".json":
        path.write_bytes(dumped(changed(rng, json.loads(path.read_bytes()))))
        return
    if kind < 8 and is_file:
        path.write_bytes(damaged(rng, path.read_bytes()))
        return
    remove(path)
    match rng.randrange(7):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.symlink_to(path)
        case 3:
            path.symlink_to(rng.choice(["/dev/zero", "/nonexistent", "/proc/self/mem", "/"]))
        case 4 if len(os.fsencode(path)) < 100:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
        case _:
            pass  # it is missing


def remove(path: Path) -> None:
    """Remove whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

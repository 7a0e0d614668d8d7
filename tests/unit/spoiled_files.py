"""Random damage to files, from a seed."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzz.mutations import damaged, mutated


def dumped(data: Any) -> bytes:
    """JSON as bytes; what is no Unicode is escaped."""
    return json.dumps(data).encode()


def spoil(rng: Random, path: Path) -> None:
    """Damage a file in any way: its JSON, its bytes, or what it is."""
    kind = rng.randrange(10)
    is_file = path.is_file() and not path.is_symlink()
    if kind < 6 and is_file and path.suffix == ".json":
        path.write_bytes(dumped(mutated(json.loads(path.read_bytes()), rng)))
        return
    if kind < 8 and is_file:
        path.write_bytes(damaged(path.read_bytes(), rng))
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

"""What the server knows of each job: one file in the folder that all hosts share, changed under one lock."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wire import SITE

Record = dict[str, Any]

STATE = Path(SITE["state"])


@contextmanager
def locked() -> Generator[None]:
    with (STATE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def next_number() -> int:
    """The number of a new job; call it under the lock."""
    path = STATE / "next"
    number = int(path.read_text()) if path.exists() else 0
    path.write_text(str(number + 1))
    return number


def save(record: Record) -> None:
    record["mtime"] = time.time()
    path = STATE / f"{record['id']}.json"
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(record))
    new.rename(path)


def load(job: str) -> Record:
    return json.loads((STATE / f"{job}.json").read_text())


def change(job: str, **fields: Any) -> Record:
    with locked():
        record = {**load(job), **fields}
        save(record)
    return record


def everything() -> list[Record]:
    """All jobs in the order of submission."""
    records = [json.loads(path.read_text()) for path in STATE.glob("*.json")]
    return sorted(records, key=lambda record: (record["number"], record["index"] or 0))


def named(text: str) -> Record | None:
    """The job a user means by `12` or `12.pbssrv`."""
    job = text if "." in text else f"{text}.{SITE['server']}"
    return load(job) if (STATE / f"{job}.json").exists() else None

"""What torchrun did with each program, recorded so that a run of the tests need not start it for every program.

`python -m benchmarks.conformance --record` writes the records. One counts only for the program, the harness, and the
versions of torch and Python that it was made with.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.conformance.launchers import Outcome, under_torchrun
from benchmarks.conformance.programs import Program

FOLDER = Path(__file__).parents[2] / "tests" / "golden" / "torchrun"
LIVE = {
    "end_exit_3",
    "environment_of_ranks",
    "failure_exception",
    "files_plain",
    "stdio_big_output",  # 12 MB
}
"""Programs without a record: every run of the tests starts them under torchrun too."""
_HARNESS = [Path(__file__).with_name(name) for name in ("launchers.py", "programs.py", "reading.py")]


def recorded(program: Program) -> Outcome | None:
    """What torchrun did with a program, or None if there is no record that counts here."""
    try:
        record = json.loads((FOLDER / f"{program.name}.json").read_bytes())
    except OSError:
        return None
    if record["of"] != _of(program):
        return None
    outcome: dict[str, Any] = record["outcome"]
    outcome["left"] = tuple(outcome["left"])
    return Outcome(**outcome)


def has_record(program: Program) -> bool:
    """Whether a program is one whose outcome under torchrun is recorded."""
    return not (program.only_muster or program.slow or program.name in LIVE)


def record(programs: Iterable[Program], jobs: int) -> list[str]:
    """Run programs under torchrun and write what it did; returns the names of those whose record has changed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = [program for program in programs if has_record(program) and not program.missing]
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder, ThreadPoolExecutor(jobs) as pool:
        return [name for name in pool.map(partial(_record, Path(folder)), wanted) if name]


def _record(folder: Path, program: Program) -> str:
    outcome = dataclasses.replace(under_torchrun(program, folder / program.name), said="")
    path, before = FOLDER / f"{program.name}.json", recorded(program)
    text = json.dumps({"of": _of(program), "outcome": dataclasses.asdict(outcome)}, indent=1, ensure_ascii=False)
    if outcome.code == 124 or outcome.left or any(place in text for place in (sys.prefix, sys.base_prefix)):
        path.unlink(missing_ok=True)  # not what it does elsewhere or next time
        return ""
    path.write_text(text + "\n")
    return program.name if before != outcome else ""


def is_stale(path: Path, program: Program) -> bool:
    """Whether a program or the harness has changed since a record was made."""
    return json.loads(path.read_bytes())["of"]["sha256"] != _of(program)["sha256"]


def _of(program: Program) -> dict[str, str]:
    """What a record depends on."""
    sources = sorted(
        path for path in [program.path, *program.path.rglob("*")] if path.is_file() and path.suffix != ".pyc"
    )
    digest = hashlib.sha256()
    for path in [*_HARNESS, *sources]:
        digest.update(path.read_bytes())
    return {
        "torch": version("torch"),
        "python": ".".join(map(str, sys.version_info[:2])),
        "sha256": digest.hexdigest()[:16],
    }

"""Runs the deep check's ranks through the controller of every job, and reads what they say."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muster.controller.controller import Controller
from muster.controller.diagnosis.verdict import Verdict
from muster.engines.engine import Launch
from muster.job import Job, make_job_folder
from muster.output.log_files import LogFiles
from muster.output.screen import Screen

RANKS = Path(__file__).with_name("rank_program.py")
MARK = "muster-check: "
"""Stands before the result of each rank in its log."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the ranks found, or why they did not."""

    results: Sequence[Mapping[str, Any]] = ()
    failure: str = ""


class _Quiet(Controller):
    """A controller whose verdict is for us, not for the screen."""

    def tell_summary(self, verdict: Verdict) -> None:
        """Whoever asked tells it."""


def measure(job: Job, launch: Launch, *, nproc: int | None, quiet: bool) -> Measured:
    """Start a rank for every GPU, or as many as the job would have, and let them measure."""
    screen = Screen(quiet=quiet)
    logs = LogFiles(screen.warning)
    folder = make_job_folder(job.id)
    with tempfile.TemporaryDirectory(prefix="muster-check-") as code:
        shutil.copy(RANKS, code)
        deep = replace(job, target=RANKS.name, kind="script", args=(MARK,), cwd=code, sync=True, grace=2.0)

        async def main() -> Verdict:
            controller = _Quiet(
                deep,
                launch=launch,
                nproc=nproc,
                folder=folder,
                screen=screen,
                logs=logs,
                only=frozenset(),
                begin=time.time(),
            )
            controller.listen_to_signals()
            return await controller.run()

        try:
            verdict = asyncio.run(main())
        finally:
            logs.close()
            screen.close()
    if not verdict.ok:
        return Measured(failure=f"{verdict.sentence}\n{verdict.detail}".strip())
    results = _read(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return Measured(results=results)


def _read(folder: Path) -> list[Mapping[str, Any]]:
    """The line of each rank, from its log."""
    results: list[Mapping[str, Any]] = []
    for path in sorted(folder.glob("attempt-0/rank-*.log")):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith(MARK):
                results.append(json.loads(line[len(MARK) :]))
    return sorted(results, key=lambda result: result["rank"])

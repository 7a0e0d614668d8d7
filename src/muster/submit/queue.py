"""The way into the queue: the script's file, and the scheduler's own program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.errors import MusterError
from muster.submit.request import Request
from muster.submit.scheduler import Scheduler

ANSWER_LIMIT = 120.0
"""Seconds for the program to answer: a busy controller takes tens of them."""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A job in the queue."""

    job: str
    script: Path
    said: str
    """What the program had to say besides."""


def submit(text: str, request: Request, scheduler: Scheduler, env: Mapping[str, str]) -> Submitted:
    """Submit a script from the job's folder, and leave it there under the name of the job with its number."""
    program = find_program(scheduler, env)
    file = _write(text, request, scheduler)
    try:
        done = _ask([program, *scheduler.options, str(file)], request, scheduler, env)
        job = scheduler.job_id(done.stdout) if done.returncode == 0 else None
        if job is None:
            raise _refusal(done, scheduler)
        script = file.with_name(f"{request.name}-{scheduler.number(job)}{scheduler.suffix}")
        file.rename(script)
    finally:
        file.unlink(missing_ok=True)
    return Submitted(job=job, script=script, said=done.stderr)


def find_program(scheduler: Scheduler, env: Mapping[str, str]) -> str:
    """The path of the program that submits; a MusterError where there is none, or it is another scheduler's."""
    found = shutil.which(scheduler.program, path=env.get("PATH"))
    if found is None:
        raise MusterError(
            f"`{scheduler.program}` is not on this machine, so nothing was submitted",
            hint=f"run this where {scheduler.title} jobs are submitted; --dry-run prints the script anywhere",
        )
    scheduler.check_program(found)
    return found


def _write(text: str, request: Request, scheduler: Scheduler) -> Path:
    """The script in a file of the job's folder that only the user can read: it holds what was typed."""
    try:
        handle, path = tempfile.mkstemp(dir=request.folder, prefix=f"{request.name}-", suffix=scheduler.suffix)
    except OSError as error:
        raise MusterError(
            f"{request.folder}: the script cannot be written there ({error.strerror}), nor could the job's output",
            hint="submit from a folder of yours that the nodes see too",
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(os.fsencode(text))  # what was typed, byte for byte
    return Path(path)


def _ask(
    argv: list[str], request: Request, scheduler: Scheduler, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            cwd=request.folder,
            env=scheduler.environment(request, env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=ANSWER_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MusterError(
            f"{scheduler.program} did not answer within {ANSWER_LIMIT:g} s and was ended; the job may be queued or not",
            hint=f"look with `{scheduler.listing}` before you submit again",
        ) from None
    except OSError as error:
        raise MusterError(f"{argv[0]} cannot be started: {error.strerror}") from None


def _refusal(done: subprocess.CompletedProcess[str], scheduler: Scheduler) -> MusterError:
    words = f"{done.stderr}\n{done.stdout}"
    lines = [re.sub(rf"^{scheduler.program}: (error: |fatal: )?", "", line.strip()) for line in words.splitlines()]
    said = "; ".join(dict.fromkeys(line for line in lines if line)) or f"exit code {done.returncode}, and not a word"
    hint = next((hint for pattern, hint in scheduler.hints if re.search(pattern, said, re.IGNORECASE)), None)
    message = f"{scheduler.program} refused the job: {said}"
    if done.returncode == 0:
        message = f"{scheduler.program} said no job id, but this: {said}"
    return MusterError(message, hint=hint or "`muster submit --dry-run …` prints the script that was submitted")

"""Submission: writes the script's file and runs the scheduler's own program."""

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
"""Timeout of the program in seconds; a busy scheduler takes tens of seconds."""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A job in the queue."""

    job: str
    script: Path
    said: str
    """What the program printed to stderr."""


def submit(text: str, request: Request, scheduler: Scheduler, env: Mapping[str, str]) -> Submitted:
    """Submit a script from the working directory, and keep it there, named after the job and its number."""
    program = find_program(scheduler, env)
    file = _write(text, request, scheduler)
    try:
        done = _ask([program, *scheduler.options, str(file)], request, scheduler, env)
        job = scheduler.job_id(done.stdout) if done.returncode == 0 else None
        if job is None:
            raise _refusal(done, scheduler)
        name = re.sub(r"[^\w.+-]", "-", scheduler.name(request), flags=re.ASCII)
        script = file.with_name(f"{name}-{scheduler.number(job)}{scheduler.suffix}")
        file.rename(script)
    finally:
        file.unlink(missing_ok=True)
    return Submitted(job=job, script=script, said=done.stderr)


def find_program(scheduler: Scheduler, env: Mapping[str, str]) -> str:
    """Return the path of the program that submits; MusterError if it is missing or belongs to another scheduler."""
    found = shutil.which(scheduler.program, path=env.get("PATH"))
    if found is None:
        raise MusterError(
            f"`{scheduler.program}` is not installed on this machine, so nothing was submitted",
            hint=f"run this on a machine that can submit {scheduler.title} jobs; --dry-run prints the script anywhere",
        )
    scheduler.check_program(found)
    return found


def _write(text: str, request: Request, scheduler: Scheduler) -> Path:
    """Write the script into the working directory, readable by the user alone: it contains the command line."""
    try:
        handle, path = tempfile.mkstemp(dir=request.folder, prefix=f"{request.name}-", suffix=scheduler.suffix)
    except OSError as error:
        raise MusterError(
            f"{request.folder}: could not write the batch script ({error.strerror})",
            hint="submit from a directory that you can write to and the nodes share; the job's output goes there too",
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(os.fsencode(text))  # the command line, byte for byte
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
            f"{scheduler.program} did not answer within {ANSWER_LIMIT:g} s and was killed; the job may be queued",
            hint=f"check with `{scheduler.listing}` before you submit again",
        ) from None
    except OSError as error:
        raise MusterError(f"could not start {argv[0]} ({error.strerror})") from None


def _refusal(done: subprocess.CompletedProcess[str], scheduler: Scheduler) -> MusterError:
    words = f"{done.stderr}\n{done.stdout}"
    lines = [re.sub(rf"^{scheduler.program}: (error: |fatal: )?", "", line.strip()) for line in words.splitlines()]
    said = "; ".join(dict.fromkeys(line for line in lines if line)) or f"exit code {done.returncode}, no output"
    hint = next((hint for pattern, hint in scheduler.hints if re.search(pattern, said, re.IGNORECASE)), None)
    message = f"{scheduler.program} rejected the job: {said}"
    if done.returncode == 0:
        message = f"{scheduler.program} printed no job id: {said}"
    return MusterError(message, hint=hint or "`muster submit --dry-run …` prints the script that was submitted")

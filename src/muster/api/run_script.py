"""`muster.run`: `muster run` as a Python function."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import Any, TextIO, cast

from muster.api.arguments import LONGEST
from muster.api.execution import execute
from muster.api.outcome import Outcome, outcome_of
from muster.api.prepared import lab_hosts, prepare
from muster.api.run_options import spec_with
from muster.api.thread import Running
from muster.errors import MusterError, UsageError
from muster.hosts import Host
from muster.output.screen import Screen
from muster.spec import RunSpec


def run(
    script: str | PathLike[str] | RunSpec, args: Sequence[object] = (), *, timeout: float | None = None, **options: Any
) -> Outcome:
    """Run a script on every rank, wait for it to end, and return how it ended.

        outcome = muster.run("train.py", ["--lr", 0.1], hosts="gpu[01-04]:8", restarts=2)
        if not outcome.ok:
            print(outcome.message, outcome.log(outcome.rank))

    Muster places, starts, monitors and stops the ranks exactly as `muster run` does; call it from a script, a notebook
    or any thread. `script` is the path of a script, or a RunSpec. The options are the fields of RunSpec with their
    defaults: hosts (a string such as "a:8,b:8" or a list), nproc, engine, env, image, sync, restarts, quiet and so on;
    `kind="module"` runs a module, as `python -m` does. `hosts` may contain host groups of a configuration file, such as
    "@lab"; option defaults of configuration files do not apply.
    After `timeout` seconds Muster stops the job and raises TimeoutError.

    A script that fails is an outcome, not an exception: see Outcome.ok, exit_code, message, rank and traceback.
    Invalid options and unreachable hosts raise MusterError. Ctrl-C stops the job, then raises KeyboardInterrupt.
    """
    try:
        spec = script if isinstance(script, RunSpec) else _spec(script, args)
        if isinstance(script, RunSpec) and args:
            raise UsageError("args cannot be used with a RunSpec, which has its own", hint="leave args out")
        if not spec.target:
            raise UsageError("no script to run", hint='for example muster.run("train.py")')
        running = run_in_thread(spec_with(spec, options), timeout)
    except MusterError as error:
        raise error.for_python() from None
    if running.timed_out:
        raise TimeoutError(f"{spec.target} did not end on every rank within {timeout:g} s")
    attempt = running.attempt
    controller = running.controller
    return outcome_of(running.verdict, controller.job.id, controller.folder, attempt.number + 1 if attempt else 1)


def _spec(script: object, args: object) -> RunSpec:
    """Return the run of a script, with arguments of any type."""
    path: object = fspath(cast("PathLike[str]", script)) if isinstance(script, str | PathLike) else None
    if not isinstance(path, str):
        raise UsageError(f"run() needs the path of a script, got {script!r}", hint='for example muster.run("train.py")')
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise UsageError(f"args must be a list, got {args!r}", hint='for example args=["--lr", 0.1]')
    return RunSpec(target=path, args=tuple(map(str, cast("Sequence[object]", args))))


def run_in_thread(
    spec: RunSpec, timeout: float | None, explain: Callable[[Sequence[Host]], tuple[str, ...]] = lambda hosts: ()
) -> Running:
    """Run a spec to its end in a separate thread, with its output where this process prints.

    `explain` returns more lines for the screen about a run on these hosts.
    """
    begin = time.time()
    check_timeout(timeout)
    if spec.controller:
        raise UsageError("controller works only with `muster run --detach`", hint="leave controller out")
    for stream in (sys.stdout, sys.stderr):  # earlier output comes first
        if stream is not None:
            stream.flush()
    with lab_hosts(spec) as located:
        prepared = prepare(located)
        prepared = replace(prepared, notes=(*explain(prepared.job.hosts), *prepared.notes))
        screen = Screen(quiet=spec.quiet, streams=_streams())
        running = execute(prepared, lambda controller: Running(controller).wait(timeout), screen=screen, begin=begin)
    running.finish()
    return running


def check_timeout(timeout: object) -> None:
    """Raise UsageError unless it is None or a number of seconds that a wait can take."""
    hint = "leave it out for no limit"
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise UsageError(f"timeout must be a number of seconds, got {timeout!r}", hint=hint)
    if timeout is not None and not 0 < timeout <= LONGEST:
        bound = f"at most {LONGEST:.0f} s" if timeout > LONGEST else "above 0"
        raise UsageError(f"timeout must be {bound}, got {timeout}", hint=hint)


def _streams() -> dict[int, TextIO | None]:
    """Return the streams that replace descriptors 1 and 2: a notebook, a test's capture."""
    streams: dict[int, TextIO | None] = {}
    for fd, stream, original in ((1, sys.stdout, sys.__stdout__), (2, sys.stderr, sys.__stderr__)):
        if stream is not original:
            streams[fd] = stream
    return streams

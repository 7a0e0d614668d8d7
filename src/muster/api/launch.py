"""`muster.launch`: the command line's job, with a Python function in place of the script."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TextIO, TypeVar

from muster.api.pickling import carry
from muster.api.results import exception_of, failure_of, results_of
from muster.api.thread import Running
from muster.cli.assembly import assembled, shown, staged
from muster.cli.run import parser
from muster.errors import MusterError, UsageError, with_hint
from muster.job import Call
from muster.shared import bootstrap

Result = TypeVar("Result")


def launch(
    fn: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    hosts: str | Sequence[str] | None = None,
    nproc: int | None = None,
    engine: Literal["auto", "local", "ssh", "slurm", "pbs", "mpi"] = "auto",
    env: Mapping[str, object] | None = None,
    image: str | None = None,
    timeout: float | None = None,
    quiet: bool = False,
    options: str | Sequence[str] = (),
) -> list[Result]:
    """Call `fn(*args, **kwargs)` on every rank and return what each returned, in the order of the ranks.

        def train(rate):
            with muster.init() as world:
                ...
                return loss

        losses = muster.launch(train, args=(0.1,), hosts="gpu[01-04]:8")
        losses[0]

    Ranks are placed, started, watched and ended exactly as by `muster run`, and have the same environment, that of
    torchrun. It may be called from a script, a notebook or any thread; it returns when all ranks have ended.

    hosts, nproc, engine, env, image, quiet: as the options of `muster run` with these names; `hosts` may be a list.
    timeout: seconds after which the job is ended and TimeoutError raised.
    options: any other options of `muster run`, as typed there: "--sync --restarts 2", or a list of words.

    A function from a notebook or the running script, a lambda or a closure is sent with its code (by cloudpickle);
    one from another module is sent by name, and the hosts must be able to import it. Hosts need Python and torch, not
    Muster; where code is sent, the same minor version of Python as here.

    If a rank raises an exception, all others are ended and that exception is raised here, from a muster.LaunchError
    that says which rank on which host it was and shows the traceback there. A lost host, a rank that was killed or left
    by sys.exit(3), and a result that cannot be pickled raise the LaunchError itself; its `results` has what other
    ranks had returned by then. Wrong arguments and unreachable hosts raise MusterError. Ctrl-C ends the job, and
    KeyboardInterrupt is raised when everything has ended.
    """
    begin = time.time()
    try:
        _refuse_while_imported_by_a_rank()
        if timeout is not None and not timeout > 0:
            raise UsageError(f"timeout={timeout} is no number of seconds above 0", hint="leave it out for no limit")
        call = carry(fn, args, kwargs or {}, cwd=os.getcwd())
        given = {"--hosts": hosts if hosts is None or isinstance(hosts, str) else ",".join(hosts)}
        given |= {"--nproc": nproc, "--engine": engine, "--image": image}
        parsed = _parse(given, env or {}, [*(["--quiet"] if quiet else []), *_words(options)])
        running = _run(call, parsed, timeout, begin)
        verdict, attempt = running.finish()
    except MusterError as error:
        # With its hint in what a traceback shows of it, and without the frames of the controller.
        error.args = (with_hint(str(error), error.hint),)
        raise error.with_traceback(None) from None
    if verdict.ok and attempt is not None:
        return results_of(call.name, attempt)
    failure = failure_of(verdict, attempt)
    if running.timed_out:
        raise TimeoutError(f"{call.name} had not returned on every rank after {timeout:g} s") from failure
    raised = exception_of(verdict, attempt)
    if raised is None:
        raise failure
    raise raised from failure


def _run(call: Call, options: argparse.Namespace, timeout: float | None, begin: float) -> Running:
    """Run the job to its end, with all it shows."""
    for stream in (sys.stdout, sys.stderr):  # what was printed before comes first
        if stream is not None:
            stream.flush()
    with (
        assembled(options, [call.name], call) as assembly,
        staged(assembly, options, begin, _streams()) as make_controller,
        shown(make_controller, options) as make,
    ):
        running = Running(make)
        running.wait(timeout)
    return running


def _words(options: str | Sequence[str]) -> Sequence[str]:
    try:
        return shlex.split(options) if isinstance(options, str) else options
    except ValueError as error:
        raise UsageError(f"options={options!r}: {str(error).lower()}", hint="a list of words needs no quotes") from None


def _parse(given: Mapping[str, object], env: Mapping[str, object], words: Sequence[str]) -> argparse.Namespace:
    """The options of `muster run`, from the arguments of launch()."""
    line = [f"{name}={value}" for name, value in given.items() if value is not None]
    line += [f"--env={name}={value}" for name, value in env.items()]
    parsed = parser().parse_args([*line, *words])
    if parsed.command:
        raise UsageError(f"options: `{parsed.command[0]}` is not an option of `muster run`", hint="leave it out")
    refused = {
        "module": ("-m", "name a function of the module instead"),
        "detach": ("--detach", "call launch() in a thread to go on meanwhile"),
        "dry_run": ("--dry-run", "`muster run --dry-run` prints a plan"),
        "slurm_args": ("--slurm-args", "run this program inside `salloc` or `sbatch`; launch() then uses its hosts"),
    }
    for name, (option, hint) in refused.items():
        if getattr(parsed, name):
            raise UsageError(f"options: launch() has no use for {option}", hint=hint)
    return parsed


def _streams() -> dict[int, TextIO | None]:
    """Where output goes that the user shall see, where that is not descriptor 1 or 2: a notebook, a test's capture."""
    streams: dict[int, TextIO | None] = {}
    for fd, stream, original in ((1, sys.stdout, sys.__stdout__), (2, sys.stderr, sys.__stderr__)):
        if stream is not original:
            streams[fd] = stream
    return streams


def _refuse_while_imported_by_a_rank() -> None:
    if getattr(sys.modules.get(bootstrap.TRAVEL_NAME), "is_loading", False):
        raise UsageError(
            "launch() was called by a module that a rank imports for its function, so it would never end",
            hint="put the call below `if __name__ == '__main__':`, or into a function",
        )

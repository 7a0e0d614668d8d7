"""`muster.launch`: calls a Python function on every rank, from a script or a notebook."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, cast

from muster.api.pickling import carry
from muster.api.results import exception_of, failure_of, results_of
from muster.api.run_options import parse_words, spec_as_typed, spec_with
from muster.api.run_script import run_in_thread
from muster.api.torchrun_options import explain
from muster.errors import MusterError, UsageError
from muster.shared import bootstrap
from muster.spec import RunSpec

Result = TypeVar("Result")


def launch(
    fn: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    hosts: str | Sequence[str] | None = None,
    nproc: int | None = None,
    engine: str | None = None,
    env: Mapping[str, object] | None = None,
    image: str | None = None,
    timeout: float | None = None,
    quiet: bool = False,
    results: Literal["pickle", "json"] = "pickle",
    options: str | Sequence[str] = (),
) -> list[Result]:
    """Call `fn(*args, **kwargs)` on every rank and return a list of the results, ordered by rank.

        def train(rate):
            with muster.init() as world:
                return fit(world, rate)

        losses = muster.launch(train, args=(0.1,), hosts="gpu[01-04]:8")

    Muster places, starts, monitors and stops the ranks exactly as `muster run` does, with the environment variables of
    torchrun. Call it from a script, a notebook or any thread; it returns when all ranks have ended.

    hosts, nproc, engine, env, image, quiet: same as the options of `muster run`; `hosts` may be a list, with groups.
    timeout: seconds after which Muster stops the job and raises TimeoutError.
    results: "json" if you do not trust the hosts: ranks send results as JSON, and nothing that they send is unpickled.
    options: other options of `muster run`, written as on the command line: "--sync --restarts 2", or a list of words.

    Muster sends a function from a notebook or the running script, a lambda or a closure with its code (using
    cloudpickle); it sends a function from another module by name, and the hosts must be able to import it. Hosts need
    Python and torch, not Muster; functions sent with their code need the same minor version of Python as here.

    If a rank raises an exception, Muster stops all other ranks and raises that exception here, from a
    muster.LaunchError with the rank, its host and its traceback. A lost host, a rank that was killed or exited early
    (sys.exit(3)), and a result that cannot be pickled raise the LaunchError itself; its `results` holds what other
    ranks had returned by then. So does every exception with results="json". Invalid arguments and unreachable hosts
    raise MusterError. Ctrl-C stops the job, then raises KeyboardInterrupt.
    """
    try:
        _refuse_while_imported_by_a_rank()
        _check_arguments(args, kwargs)
        call = carry(fn, args, kwargs or {}, cwd=os.getcwd(), results=results)
        given = {"hosts": hosts, "nproc": nproc, "engine": engine, "env": env, "image": image, "quiet": quiet}
        spec = spec_with(RunSpec(target=call.name, kind="function", call=call, cwd=os.getcwd()), given)
        typed = parse_words(_words(options))
        running = run_in_thread(spec_as_typed(spec, typed), timeout, partial(explain, typed))
    except MusterError as error:
        raise error.for_python() from None
    verdict, attempt = running.verdict, running.attempt
    if verdict.ok and attempt is not None:
        return results_of(call.name, attempt, results)
    failure = failure_of(verdict, attempt, results)
    if running.timed_out:
        raise TimeoutError(f"{call.name} did not return on every rank within {timeout:g} s") from failure
    if (raised := exception_of(verdict, attempt) if results == "pickle" else None) is None:
        raise failure
    raise raised from failure


def _check_arguments(args: object, kwargs: object) -> None:
    """Raise UsageError for arguments of the function in a wrong form, as `args=0.1`."""
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise UsageError(f"args must be a list or tuple, got {args!r}", hint="for example args=(0.1,)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise UsageError(f"kwargs must be a dict, got {kwargs!r}", hint='for example kwargs={"rate": 0.1}')
    wrong = [name for name in cast("Mapping[object, object]", kwargs or {}) if not isinstance(name, str)]
    if wrong:
        raise UsageError(f"names in kwargs must be strings, got {wrong[0]!r}", hint='for example kwargs={"rate": 0.1}')


def _words(options: object) -> Sequence[str]:
    listed = cast("Sequence[object]", options) if isinstance(options, list | tuple) else ()
    words = [word for word in listed if isinstance(word, str)]
    if not isinstance(options, str | list | tuple) or len(words) != len(listed):
        raise UsageError(f"options must be a string or a list of strings, got {options!r}", hint='options="--sync"')
    try:
        words = shlex.split(options) if isinstance(options, str) else words
    except ValueError as error:
        hint = "pass a list of words, which needs no quotes"
        raise UsageError(f"options={options!r}: {str(error).lower()}", hint=hint) from None
    if {"-h", "--help"} & set(words):
        raise UsageError("options: launch() does not support --help", hint="`muster run --help` lists the options")
    return words


def _refuse_while_imported_by_a_rank() -> None:
    if getattr(sys.modules.get(bootstrap.TRAVEL_NAME), "is_loading", False):
        raise UsageError(
            "launch() was called while a rank imports this module for its function, so each rank would launch again",
            hint="move the call below `if __name__ == '__main__':`, or into a function",
        )

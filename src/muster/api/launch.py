"""`muster.launch`: calls a Python function on every rank, from a script or a notebook."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

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
                ...
                return loss

        losses = muster.launch(train, args=(0.1,), hosts="gpu[01-04]:8")
        losses[0]

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
        if results not in ("pickle", "json"):
            hint = "json is for plain values, and nothing is unpickled"
            raise UsageError(f'results must be "pickle" or "json", got {results!r}', hint=hint)
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
    raised = exception_of(verdict, attempt) if results == "pickle" else None
    if raised is None:
        raise failure
    raise raised from failure


def _words(options: str | Sequence[str]) -> Sequence[str]:
    try:
        return shlex.split(options) if isinstance(options, str) else options
    except ValueError as error:
        hint = "pass a list of words, which needs no quotes"
        raise UsageError(f"options={options!r}: {str(error).lower()}", hint=hint) from None


def _refuse_while_imported_by_a_rank() -> None:
    if getattr(sys.modules.get(bootstrap.TRAVEL_NAME), "is_loading", False):
        raise UsageError(
            "launch() was called while a rank imports this module for its function, so each rank would launch again",
            hint="move the call below `if __name__ == '__main__':`, or into a function",
        )

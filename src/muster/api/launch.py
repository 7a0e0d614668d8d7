"""`muster.launch`: a Python function on every rank, called from a script or a notebook."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

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
    try:
        _refuse_while_imported_by_a_rank()
        call = carry(fn, args, kwargs or {}, cwd=os.getcwd())
        given = {"hosts": hosts, "nproc": nproc, "engine": engine, "env": env, "image": image, "quiet": quiet}
        spec = spec_with(RunSpec(target=call.name, kind="function", call=call, cwd=os.getcwd()), given)
        typed = parse_words(_words(options))
        running = run_in_thread(spec_as_typed(spec, typed), timeout, partial(explain, typed))
    except MusterError as error:
        raise error.for_python() from None
    verdict, attempt = running.verdict, running.attempt
    if verdict.ok and attempt is not None:
        return results_of(call.name, attempt)
    failure = failure_of(verdict, attempt)
    if running.timed_out:
        raise TimeoutError(f"{call.name} had not returned on every rank after {timeout:g} s") from failure
    raised = exception_of(verdict, attempt)
    if raised is None:
        raise failure
    raise raised from failure


def _words(options: str | Sequence[str]) -> Sequence[str]:
    try:
        return shlex.split(options) if isinstance(options, str) else options
    except ValueError as error:
        raise UsageError(f"options={options!r}: {str(error).lower()}", hint="a list of words needs no quotes") from None


def _refuse_while_imported_by_a_rank() -> None:
    if getattr(sys.modules.get(bootstrap.TRAVEL_NAME), "is_loading", False):
        raise UsageError(
            "launch() was called by a module that a rank imports for its function, so it would never end",
            hint="put the call below `if __name__ == '__main__':`, or into a function",
        )

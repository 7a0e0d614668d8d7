"""The result of a function's job: the return values ordered by rank, or the exception of the rank that failed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from muster.api.outcome import message_of
from muster.controller.attempt import Attempt
from muster.controller.diagnosis.verdict import Verdict
from muster.errors import LaunchError

_LOADERS: Mapping[str, Callable[[bytes], Any]] = {"json": json.loads, "pickle": pickle.loads}
"""What reads a result, by the argument `results` of `muster.launch`."""


def results_of(name: str, attempt: Attempt, results_as: str) -> list[Any]:
    """Return the result of each rank; all ranks exited with code 0."""
    returned, load = attempt.returned, _LOADERS[results_as]
    results: list[Any] = []
    for rank in range(attempt.plan.world_size):
        host = attempt.plan.placement_of(rank).name
        failed = partial(LaunchError, rank=rank, host=host, returned=returned, load=load)
        if rank not in returned:
            raise failed(
                f"rank {rank} on {host} exited with code 0 before {name} returned",
                hint="check whether something in it calls os._exit()",
            )
        try:
            results.append(load(returned[rank]))
        except Exception as error:
            raise failed(
                f"could not read the result of rank {rank} on {host} ({type(error).__name__}: {error})",
                hint="return only what this machine can load: tensors on the CPU, types it can import"
                if results_as == "pickle"
                else None,
            ) from None
    return results


def failure_of(verdict: Verdict, attempt: Attempt | None, results_as: str) -> LaunchError:
    """Make the LaunchError for the rank or host that failed first."""
    returned, load = attempt.returned if attempt is not None else {}, _LOADERS[results_as]
    first = verdict.first
    if first is None or attempt is None:
        return LaunchError(message_of(verdict), hint=verdict.fix or None, returned=returned, load=load)
    hint = attempt.hint(first.rank)
    return LaunchError(
        message_of(verdict),
        hint=hint or verdict.fix or None,
        rank=first.rank,
        host=first.host,
        traceback=verdict.detail if hint is None else "",
        returned=returned,
        load=load,
    )


def exception_of(verdict: Verdict, attempt: Attempt | None) -> Exception | None:
    """Return the exception of the rank that failed first; None if it cannot be pickled there or unpickled here."""
    pickled = attempt.raised(verdict.first.rank) if attempt is not None and verdict.first is not None else None
    if pickled is None:
        return None
    try:
        value = pickle.loads(pickled)
        if isinstance(value, Exception):
            return value
        kind, args, state = value
        error = kind.__new__(kind, *args)
        error.args = args
        error.__dict__.update(state)
    except Exception:
        return None  # its class is not known here, or cannot be created
    return error

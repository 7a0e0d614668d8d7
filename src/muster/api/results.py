"""What a function's job comes to: the results in the order of the ranks, or the exception of the rank that failed."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

from muster.api.outcome import message_of
from muster.controller.attempt import Attempt
from muster.controller.diagnosis.verdict import Verdict
from muster.errors import LaunchError


def results_of(name: str, attempt: Attempt) -> list[Any]:
    """What each rank returned; every one has ended well."""
    returned = attempt.returned
    results: list[Any] = []
    for rank in range(attempt.plan.world_size):
        host = attempt.plan.placement_of(rank).name
        failed = partial(LaunchError, rank=rank, host=host, returned=returned)
        if rank not in returned:
            raise failed(
                f"rank {rank} on {host} ended with exit code 0 before {name} had returned",
                hint="does something in it call os._exit()?",
            )
        try:
            results.append(pickle.loads(returned[rank]))
        except Exception as error:
            raise failed(
                f"the result of rank {rank} on {host} cannot be unpickled here: {type(error).__name__}: {error}",
                hint="return what this machine knows too: tensors on the CPU, types it can import",
            ) from None
    return results


def failure_of(verdict: Verdict, attempt: Attempt | None) -> LaunchError:
    """Which rank or host failed first, and how."""
    returned = attempt.returned if attempt is not None else {}
    first = verdict.first
    if first is None or attempt is None:
        return LaunchError(message_of(verdict), hint=verdict.fix or None, returned=returned)
    hint = attempt.hint(first.rank)
    return LaunchError(
        message_of(verdict),
        hint=hint or verdict.fix or None,
        rank=first.rank,
        host=first.host,
        traceback=verdict.detail if hint is None else "",
        returned=returned,
    )


def exception_of(verdict: Verdict, attempt: Attempt | None) -> Exception | None:
    """The exception of the rank that failed first, as far as it could be pickled there and unpickled here."""
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
        return None  # its class is not known here, or does not let itself be made
    return error

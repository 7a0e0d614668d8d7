"""Waits for several hosts at once, and reports all that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from muster.errors import MusterError

Result = TypeVar("Result")


async def all_or_errors(what: Sequence[Awaitable[Result]]) -> list[Result]:
    """Await everything, then raise: a single failure as is, several as one error that lists each host."""
    results = await asyncio.gather(*what, return_exceptions=True)
    errors: list[MusterError] = []
    good: list[Result] = []
    for result in results:
        if isinstance(result, MusterError):
            errors.append(result)
        elif isinstance(result, BaseException):
            raise result
        else:
            good.append(result)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = "\n".join(f"  {error.message}" for error in errors)
        hints = dict.fromkeys(error.hint for error in errors if error.hint)
        raise MusterError(
            f"{len(errors)} of {len(what)} hosts are not usable\n{lines}", hint="\n      ".join(hints) or None
        )
    return good

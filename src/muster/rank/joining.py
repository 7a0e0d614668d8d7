"""Where a rank that is in `init_process_group` looks for the others: read from the variables of that call."""

from __future__ import annotations

import os

from .torch_adapter import C10D

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import FrameType
    from typing import Any

    from ..shared.reports import Meeting


def meeting(frames: Iterable[FrameType]) -> Meeting | None:
    """The place, how many ranks are expected there and as which of them this one comes; None in no such call."""
    for frame in frames:
        if frame.f_code.co_name == "init_process_group" and frame.f_globals.get("__name__") == C10D:
            return _read(frame.f_locals)
    return None


def _read(given: Mapping[str, Any]) -> Meeting:
    """As torch reads it: the call's arguments, then the query of its URL, then the environment if that is the URL."""
    from urllib.parse import parse_qs, urlsplit

    if given.get("init_method") is None and given.get("store") is not None:
        at, query, is_environment = "", {}, False  # the script brought a store: torch names a URL for its own
    else:
        url = str(given.get("init_method") or "env://")
        parts = urlsplit(url)
        query, is_environment = parse_qs(parts.query), parts.scheme == "env"
        at = parts.netloc if parts.scheme == "tcp" else url.partition("?")[0]
        if is_environment:  # as the script has left it
            at = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"

    def number(argument: str, variable: str) -> int | None:
        told = [given.get(argument), *query.get(argument, ()), *([os.environ.get(variable)] if is_environment else ())]
        return next((found for value in told if (found := _number(value)) is not None), None)

    return {"at": at, "size": number("world_size", "WORLD_SIZE"), "rank": number("rank", "RANK")}


def _number(value: Any) -> int | None:
    """A number from 0 on, in whatever form it was given; -1 means that it was not."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        return None
    return number if number >= 0 else None

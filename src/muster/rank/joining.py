"""Finds out where a rank in `init_process_group` looks for the others, from the local variables of that call."""

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
    """The address, the expected number of ranks and this one's rank; None outside of `init_process_group`."""
    for frame in frames:
        if frame.f_code.co_name == "init_process_group" and frame.f_globals.get("__name__") == C10D:
            return _read(frame.f_locals)
    return None


def _read(given: Mapping[str, Any]) -> Meeting:
    """Read the values in torch's order: arguments, the query of the URL, then the environment if the URL is env://."""
    from urllib.parse import parse_qs, urlsplit

    if given.get("init_method") is None and given.get("store") is not None:
        at, query, is_environment = "", {}, False  # the script passed its own store
    else:
        url = str(given.get("init_method") or "env://")
        parts = urlsplit(url)
        query, is_environment = parse_qs(parts.query), parts.scheme == "env"
        at = parts.netloc if parts.scheme == "tcp" else url.partition("?")[0]
        if is_environment:  # which the script may have changed
            at = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"

    def number(argument: str, variable: str) -> int | None:
        candidates = [
            given.get(argument),
            *query.get(argument, ()),
            *([os.environ.get(variable)] if is_environment else ()),
        ]
        return next((found for value in candidates if (found := _number(value)) is not None), None)

    return {"at": at, "size": number("world_size", "WORLD_SIZE"), "rank": number("rank", "RANK")}


def _number(value: Any) -> int | None:
    """A non-negative integer in any form; None for anything else, such as torch's default of -1."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        return None
    return number if number >= 0 else None

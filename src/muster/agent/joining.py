"""Where a rank that is in `init_process_group` looks for the others: read from the variables of that call."""

from __future__ import annotations

import os

from .torch_adapter import C10D

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType
    from typing import Any


def meeting(frames: Iterable[FrameType]) -> dict[str, Any] | None:
    """The place, how many ranks are expected there and as which of them this one comes; None in no such call.

    The call's own arguments come first, then the environment as the script has left it, as torch has it.
    """
    for frame in frames:
        if frame.f_code.co_name == "init_process_group" and frame.f_globals.get("__name__") == C10D:
            given = frame.f_locals
            return {
                "at": _place(given.get("init_method"), given.get("store")),
                "size": _number(given.get("world_size"), "WORLD_SIZE"),
                "rank": _number(given.get("rank"), "RANK"),
            }
    return None


def _place(method: Any, store: Any) -> str:
    """`10.0.0.1:29500`, `file:///shared/x`; nothing where the script brought a store of its own."""
    if method is None and store is not None:
        return ""  # torch names a method wherever it makes the store itself
    method = method or "env://"
    if method.startswith("env://"):
        return f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    return method.partition("?")[0].removeprefix("tcp://")


def _number(given: Any, variable: str) -> int | None:
    if isinstance(given, int) and given >= 0:
        return given
    told = os.environ.get(variable, "")
    return int(told) if told.isdecimal() else None

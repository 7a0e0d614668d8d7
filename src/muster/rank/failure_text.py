"""Formats exceptions, values and locations in the user's code."""

from __future__ import annotations

import os

from ..shared.user_code import is_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType


def text_of(value: object) -> str:
    """`str(value)`, or a placeholder if that raises."""
    try:
        return str(value)
    except Exception:
        return f"<{type_name(value)} str() failed>"


def summary_of(error: BaseException, message: str) -> str:
    """Type and first line of an exception; errors of CUDA and NCCL continue with lines of general advice."""
    name = type_name(error)
    first = message.strip().partition("\n")[0]
    return f"{name}: {first}" if first else name


def type_name(value: object) -> str:
    """The type name of a value, as an uncaught exception shows it."""
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def place_of(traceback: TracebackType | None) -> str:
    """`file.py:12` of the innermost frame in the user's code, not in a package or the standard library."""
    from traceback import extract_tb

    frames = extract_tb(traceback)
    if not frames:
        return ""
    frame = ([frame for frame in frames if is_users(frame.filename)] or frames)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


def innermost(frames: Sequence[FrameType]) -> str:
    """`train.py:88 in step`: the first of these frames in the user's code, innermost first; empty if there is none."""
    for frame in frames:
        code = frame.f_code
        if is_users(code.co_filename):
            return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
    return ""

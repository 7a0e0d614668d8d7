"""Exceptions, values and places in the user's code, as text."""

from __future__ import annotations

import os

from ..shared.user_code import is_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType


def text_of(value: object) -> str:
    """A value as text, whatever its own code does."""
    try:
        return str(value)
    except Exception:
        return f"<{type_name(value)} str() failed>"


def summary_of(error: BaseException, message: str) -> str:
    """Type and first line of an exception: errors of CUDA and NCCL go on with lines of general advice."""
    name = type_name(error)
    first = message.strip().partition("\n")[0]
    return f"{name}: {first}" if first else name


def type_name(value: object) -> str:
    """The type of something, as an uncaught exception shows it."""
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def place_of(traceback: TracebackType | None) -> str:
    """`file.py:12` of the innermost frame that is the user's, not a package's or the standard library's."""
    from traceback import extract_tb

    frames = extract_tb(traceback)
    if not frames:
        return ""
    frame = ([frame for frame in frames if is_users(frame.filename)] or frames)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


def innermost(frames: Sequence[FrameType]) -> str:
    """`train.py:88 in step`: where the user's code is, of frames with the innermost first; empty where none is."""
    for frame in frames:
        code = frame.f_code
        if is_users(code.co_filename):
            return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
    return ""

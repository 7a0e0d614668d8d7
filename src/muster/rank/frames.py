"""Runs code as the outermost frame of this thread, as `python script.py` does, without Muster's frames below it."""

from __future__ import annotations

import sys

from ..shared.light_ctypes import c_void_p, python_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_WORDS = 40
"""Number of words of the thread state to search; the pointer to the current frame is among the first dozen."""

_FRAME = 24
"""Offset in a frame object of the pointer to the interpreter's own frame, in CPython 3.11 and newer."""


def call_outermost(function: Callable[[], object]) -> None:
    """Call a function implemented in C so that the frames it creates have no frame below them.

    `inspect.stack()[-1]`, `sys._getframe().f_back` and `warnings.warn(..., stacklevel=2)` then see the script alone.
    If the interpreter's current frame cannot be found, the function runs above Muster's frames.
    """
    slot = _current_frame()
    ours = _inner(sys._getframe()) if slot is not None else None
    if slot is None or slot.value != ours:
        function()
        return
    slot.value = None
    try:
        function()
    finally:
        slot.value = ours


def _inner(frame: object) -> int | None:
    """The address of the interpreter's own frame: inside a frame object, or the object itself before Python 3.11."""
    if sys.version_info < (3, 11):
        return id(frame)
    return c_void_p.from_address(id(frame) + _FRAME).value


def _current_frame() -> c_void_p | None:
    """The location of the interpreter's pointer to the current frame of the main thread; None if unknown.

    CPython keeps it in the thread state; 3.11 and 3.12 keep it in a structure on the C stack that the thread state
    points to. Both are found by content, so no particular layout is assumed.
    """
    if sys.implementation.name != "cpython":
        return None
    inner = _inner(sys._getframe())
    state: int = python_function("PyThreadState_Get", c_void_p)()
    first, last = _stack()
    for word in range(_WORDS):
        slot = c_void_p.from_address(state + 8 * word)
        if slot.value == inner:
            return slot
        if slot.value is not None and first <= slot.value < last - 16 and slot.value % 8 == 0:
            for offset in (0, 8):
                below = c_void_p.from_address(slot.value + offset)
                if below.value == inner:
                    return below
    return None


def _stack() -> tuple[int, int]:
    """The address range of the main thread's stack; empty if the kernel does not show it."""
    try:
        with open("/proc/self/maps") as file:
            for line in file:
                if line.endswith("[stack]\n"):
                    first, _, last = line.split(maxsplit=1)[0].partition("-")
                    return int(first, 16), int(last, 16)
    except OSError:
        pass
    return 0, 0

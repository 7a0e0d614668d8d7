"""The part of the module `ctypes` that agents and ranks need: importing all of it takes 1.5 ms of CPU in each."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from ctypes import c_size_t as c_size_t
    from ctypes import c_void_p as c_void_p
    from typing import Any

    def function(name: str, result: type[Any] | None = None) -> Callable[..., Any]:
        """A function of the C library; it returns an int, or what a type for its `result` gives."""
        ...

    def python_function(name: str, result: type[Any]) -> Callable[..., Any]:
        """A function of the interpreter, which is called with the GIL."""
        ...

else:
    import _ctypes

    class c_void_p(_ctypes._SimpleCData):
        """A pointer."""

        _type_ = "P"

    class c_size_t(_ctypes._SimpleCData):
        """The size of something in memory."""

        _type_ = "L"

    class _Int(_ctypes._SimpleCData):
        _type_ = "i"

    class _Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL
        _restype_ = _Int

    class _PythonFunction(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_PYTHONAPI
        _restype_ = _Int

    def function(name, result=None):
        """A function of the C library; it returns an int, or what a type for its `result` gives."""
        return _named(_Function, name, result)

    def python_function(name, result):
        """A function of the interpreter, which is called with the GIL."""
        return _named(_PythonFunction, name, result)

    def _named(kind, name, result):
        found = kind(_ctypes.dlsym(_ctypes.dlopen(None, 0), name))
        if result is not None:
            found.restype = result
        return found

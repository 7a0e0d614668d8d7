"""Ends a rank: does all that python does at the end of a script, but without destroying torch.

Destroying what the zygote imported would cost 0.2 s of CPU per rank. Destroying a process group that the script left
open is unsafe: torch 2.13's gloo joins its threads while it holds the GIL, which they may be waiting for, and a thread
that requests the GIL of an interpreter that is shutting down aborts the process. So the script's own modules and
objects are destroyed here, in python's order and with the interpreter still intact; torch's are not.
"""

from __future__ import annotations

import os
import sys

from . import torch_groups
from .frames import call_outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType
    from typing import Any, NoReturn
    from weakref import ref

_FLUSHED = {"TextIOWrapper": "_io", "BufferedWriter": "_io", "BufferedRandom": "_io"}
"""File types that are flushed at exit, with their modules."""

_CLOSED = {"GzipFile": "gzip", "BZ2File": "bz2", "LZMAFile": "lzma", "ZipFile": "zipfile"}
"""File types that are closed at exit, with their modules."""

INTERRUPTED = -2
"""Used instead of an exit code if KeyboardInterrupt ended the script; the process then dies by SIGINT."""

_FLUSH_FAILED = 120
"""Python's exit code if the final flush of stdout or stderr fails."""


def leave(code: int, kept: Collection[str], *, is_forked: bool) -> NoReturn:
    """Exit with this code, without destroying the modules named in `kept`.

    Whatever happens here, a successful script exits with 0, unless its last output could not be written.
    """
    try:
        code = _finish(code, kept)
    finally:
        if code == INTERRUPTED:
            _die_by_sigint()
        _exit(code, is_forked=is_forked)


def stop_at_exit_handlers() -> None:
    """Run only the exit handlers of C libraries that are loaded from now on when the process exits.

    Called after torch is loaded, so that its C++ objects are not destroyed; exit() calls the last handler first.
    """
    from ..shared import processes

    libc = processes.libc()
    on_exit = getattr(libc, "on_exit", None)  # glibc
    if on_exit is not None:
        on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)


def _finish(code: int, kept: Collection[str]) -> int:
    import atexit
    import threading

    try:
        vars(threading)["_shutdown"]()  # waits for the script's non-daemon threads
    except BaseException as error:
        _show_ignored(threading, error)
    try:
        call_outermost(atexit._run_exitfuncs)
    except BaseException as error:
        _show_ignored(atexit, error)
    code = _flush(code)
    torch_groups.leave_file_stores()
    torch_groups.keep_alive()
    _silence_threads()
    _end_modules(kept)
    return _flush(code)


def _flush(code: int) -> int:
    """Flush stdout and stderr as python does; a closed or missing stream is not an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):  # type: ignore[redundant-expr]
                stream.flush()
        except BaseException as error:
            code = code or _FLUSH_FAILED
            if stream is sys.stdout:
                _show_ignored(stream, error)
    return code


def _silence_threads() -> None:
    """Suppress tracebacks of daemon threads from now on: python would have stopped these threads."""
    import threading

    main, hook = threading.get_ident(), sys.unraisablehook

    def ignore(*unused: Any) -> None:
        """Print nothing."""

    def unraisable(error: Any) -> None:
        if threading.get_ident() == main:
            hook(error)

    threading.excepthook = ignore
    sys.unraisablehook = unraisable


def _end_modules(kept: Collection[str]) -> None:
    """Destroy the script's modules and their contents, as python's `finalize_modules` does for all modules.

    First each is removed from sys.modules, so that unreferenced ones are destroyed; then the names in the remaining
    ones are set to None. Python has stopped daemon threads by then, but here they keep running. If there are any, only
    the script itself is destroyed, nothing that the threads may use, and open files are flushed.
    """
    import gc
    import threading
    from types import ModuleType
    from weakref import ref

    # As python does. It also moves referrers before their referents in the collector's list, so that a text file is
    # flushed before the gzip file below it is closed.
    gc.collect()
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, name, getattr(sys, f"__{name}__"))
    is_alone = not any(thread.daemon and not thread.name.startswith("muster-") for thread in threading.enumerate())
    if not is_alone:
        _write_files()
    modules: list[ref[ModuleType]] = []
    for name in list(sys.modules) if is_alone else ["__main__"]:
        module: Any = sys.modules[name]  # or any object that a package put there
        if name in kept or not isinstance(module, ModuleType) or not _ends_with_script(name, module):
            continue
        modules.append(ref(module))
        del module
        sys.modules[name] = None  # type: ignore[assignment]  # as python's own shutdown does
    gc.collect()
    for reference in reversed(modules) if is_alone else ():
        module = reference()
        if module is not None:
            _clear(module)
        del module
    gc.collect()


def _write_files() -> None:
    """Flush the files that the script left open, and close those whose format needs it."""
    import gc

    # Only exact types, so that no code of the script runs; objects of the zygote are frozen and not listed.
    found: list[Any] = [thing for thing in gc.get_objects() if type(thing).__name__ in (*_FLUSHED, *_CLOSED)]
    for names in (_FLUSHED, _CLOSED):
        for thing in found:
            if names.get(type(thing).__name__) == type(thing).__module__:
                try:
                    (thing.flush if names is _FLUSHED else thing.close)()
                except BaseException:
                    pass  # closed already, or its disk is full


def _ends_with_script(name: str, module: ModuleType) -> bool:
    """Whether a module belongs to the script or a package; the rest of the shutdown needs torch and the stdlib."""
    if name.partition(".")[0] in ("torch", __name__.partition(".")[0]):
        return False
    names: dict[str, Any] = object.__getattribute__(module, "__dict__")
    file = names.get("__file__")
    if not isinstance(file, str):
        return name == "__main__"
    return not file.startswith(os.path.dirname(os.__file__) + os.sep) or "-packages" + os.sep in file


def _clear(module: ModuleType) -> None:
    """Set the names of a module to None as python does: first those with a single underscore, then the others."""
    names: dict[str, Any] = object.__getattribute__(module, "__dict__")
    for private in (True, False):
        for name in list(names):
            if name != "__builtins__" and (not private or (name[:1] == "_" and name[1:2] != "_")):
                try:
                    names[name] = None
                except BaseException:
                    pass


def _show_ignored(where: object, error: BaseException) -> None:
    """Print an error as python prints one that it can no longer raise, without frames of this module."""
    from traceback import format_exception

    try:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_globals is globals():
            traceback = traceback.tb_next
        text = "".join(format_exception(type(error), error, traceback))
        sys.stderr.write(f"Exception ignored in: {where!r}\n{text}")
    except BaseException:
        pass


def _die_by_sigint() -> NoReturn:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    os._exit(130)


def _exit(code: int, *, is_forked: bool) -> NoReturn:
    """Exit the process, with exit handlers of C libraries unless threads of a process group could still use them."""
    from ..shared import processes

    try:
        libc = processes.libc()
        libc.fflush(None)
        if is_forked and not torch_groups.are_alive():
            libc.exit(code & 0xFF)
    finally:
        os._exit(code & 0xFF)

"""Inside a rank: become what `python script.py` would be, run the user's script, and end as python would."""

from __future__ import annotations

import builtins
import io
import os
import sys
import types
from _frozen_importlib_external import SourceFileLoader

from . import torch_adapter
from .report import SIGNAL, Reporter, place_of

# signal, ctypes and the like are imported where they are used: 10 ms that a fresh rank does not pay.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, NoReturn


def main(config: dict[str, Any]) -> int:
    """Run the rank in a fresh interpreter (`--no-zygote`); the ordinary end of python follows."""
    _take_stdio([config["stdin"]])  # descriptor 0 brought this code
    set_first_path(config)
    os.set_inheritable(config["stacks"], False)
    return _run(config, Reporter(config["report"]))


def run_forked(config: dict[str, Any], fds: list[int]) -> NoReturn:
    """Turn this fork of the zygote into a rank; `fds`: stdin, stdout, stderr, report, stacks, then any function."""
    import signal

    from . import processes

    processes.default_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _take_stdio(fds[:3])
    os.environ.clear()
    os.environ.update(config["env"])
    _set_title([sys.executable, *_command(config)])
    torch_adapter.reseed()
    torch_adapter.set_threads(os.environ)
    _quick_exit(_run({**config, "stacks": fds[4], "call": fds[5:]}, Reporter(fds[3])))


def _run(config: dict[str, Any], reporter: Reporter) -> int:
    import faulthandler

    faulthandler.enable()  # a crash in C code then shows the Python line it came from
    # Where the interpreter cannot answer because C code holds its lock, this still can. Forked children have it too.
    faulthandler.register(SIGNAL, file=config["stacks"], all_threads=True, chain=False)
    reporter.watch_progress()
    sys.argv = [config["target"], *config["args"]]
    sys.orig_argv = [sys.executable, *_command(config)]
    try:
        code = _run_target(config, reporter)
        reporter.left("end")
        return code
    except SystemExit as error:
        return _exit_code(error, reporter)
    except BaseException as error:
        traceback = _users_part(error.__traceback__)
        reporter.exception(error, traceback)
        if config["kind"] == "function":
            from . import call

            call.send_exception(error, reporter)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback  # as python does
        sys.__dict__["last_exc"] = error  # from Python 3.12 on
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        if isinstance(error, KeyboardInterrupt):
            _die_by_sigint()
        return 1
    finally:
        reporter.last_look()


def set_first_path(config: dict[str, Any]) -> None:
    """Make sys.path[0] what `python script.py` or `python -m` would make it; the zygote imports with it already.

    A function finds what its caller would find: the folders before the interpreter's own, and those after them.
    """
    if config["kind"] == "function":
        first, last = ([os.path.abspath(folder) for folder in folders] for folders in config["path"])
        sys.path[:] = [*first, *sys.path, *(folder for folder in last if folder not in sys.path)]
        return
    if getattr(sys.flags, "safe_path", False):
        return
    # Nothing stood there before: what brought this code takes the empty entry of `python -c` out first.
    is_script = config["kind"] == "script"
    sys.path.insert(0, os.path.dirname(os.path.realpath(config["target"])) if is_script else os.getcwd())


def _run_target(config: dict[str, Any], reporter: Reporter) -> int:
    """Run what the rank is for, and return its exit code."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    # Left in place when the script ends: pickling and multiprocessing's spawn look the script up here.
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # multiprocessing's second name for it, taken when the zygote imported it
        sys.modules["__mp_main__"] = main
    if config["kind"] == "function":
        from . import call

        return call.run(config["call"][0], reporter)
    if config["kind"] == "module":
        import runpy

        run: Callable[..., Any] = vars(runpy)["_run_module_as_main"]  # what `python -m` itself calls
        run(config["target"], alter_argv=True)
        return 0
    path = os.path.abspath(config["target"])
    main.__dict__.update(__file__=path, __cached__=None, __spec__=None, __loader__=SourceFileLoader("__main__", path))
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)
    return 0


def _exit_code(error: SystemExit, reporter: Reporter) -> int:
    code = error.code
    place = place_of(_users_part(error.__traceback__))
    if code is None or code == 0:
        reporter.left("exit", place)
        return 0
    if isinstance(code, int):
        reporter.send({"t": "sysexit", "place": place, "text": ""})
        return code & 0xFF
    reporter.send({"t": "sysexit", "place": place, "text": str(code)[:500]})
    print(code, file=sys.stderr)
    return 1


def _users_part(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this package and of runpy, as plain python shows it."""
    ours = (
        __name__,
        f"{__name__.rpartition('.')[0]}.call",
        "runpy",
        "importlib._bootstrap",
        "importlib._bootstrap_external",
    )
    while traceback and traceback.tb_frame.f_globals.get("__name__") in ours:
        traceback = traceback.tb_next
    return traceback


def _die_by_sigint() -> NoReturn:
    import signal

    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    os._exit(130)


def _quick_exit(code: int) -> NoReturn:
    """End as python does, but without tearing torch down, which costs 0.2 s of CPU per rank."""
    import atexit
    import threading

    from . import processes

    try:
        vars(threading)["_shutdown"]()  # waits for the script's non-daemon threads
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or 120  # what python itself returns when the last flush fails
        _flush_open_files()
        processes.libc.fflush(None)
        os._exit(code)


def _flush_open_files() -> None:
    """Write out what the script left in files it did not close; python's own end would do so too."""
    import gc
    import io

    # 0.1 ms: what the zygote made is frozen and not among these objects.
    for thing in gc.get_objects():
        if isinstance(thing, (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            try:
                thing.flush()
            except (OSError, ValueError):
                pass  # closed, or its disk is full


def _take_stdio(fds: list[int]) -> None:
    """The rank's descriptors behind the streams that python made at start, and output line by line as it comes."""
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    # Made anew as python makes it: the old one still takes its descriptor for the file that brought this code.
    raw = io.FileIO(0, closefd=False)
    raw.name = "<stdin>"
    stdin = io.TextIOWrapper(io.BufferedReader(raw), sys.stdin.encoding, sys.stdin.errors, "\n", raw.isatty())
    vars(stdin)["mode"] = "r"
    sys.stdin = sys.__stdin__ = stdin
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _command(config: dict[str, Any]) -> list[str]:
    return [*(["-m"] if config["kind"] == "module" else []), config["target"], *config["args"]]


def _set_title(argv: list[str]) -> None:
    """Show the script's command line in `ps` and nvidia-smi instead of the zygote's, as far as there is room."""
    import ctypes

    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49 of proc(5)
        if 0 < start < end:
            title = b"\0".join(os.fsencode(word) for word in argv)[: end - start - 1]
            ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)
    except (OSError, ValueError, IndexError):
        pass

"""Runs the user's script in a rank as `python script.py` would, and exits as python would."""

from __future__ import annotations

import builtins
import io
import os
import sys
from _frozen_importlib_external import SourceFileLoader

from .failure_text import place_of, text_of
from .questions import SIGNAL
from .reporter import Reporter, is_watched

# What most fresh ranks do not need before their script imports torch is imported where it is used: that saves 10 ms.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from functools import partial
    from types import ModuleType, TracebackType
    from typing import NoReturn

    from ..shared.spawner_messages import FreshRankConfig, RankConfig, Target

else:
    from _functools import partial  # functools itself takes 2 ms of CPU

_LOADERS = ("runpy", "importlib._bootstrap", "importlib._bootstrap_external")
"""Python's own modules that run or import the script."""

_HOLD_LIMIT = 60.0
"""Seconds that a finished rank waits for others that are still creating a process group with it."""

_HOLD_NOTICE = 2.0
"""Seconds after which it reports that it waits."""


def main(config: FreshRankConfig) -> int:
    """Run the rank in a fresh interpreter (`--no-zygote`); python exits normally afterwards if that is safe."""
    from . import process_title

    _take_stdio([config["stdin"]])  # this code arrived on descriptor 0
    process_title.set_title([sys.executable, *process_title.command(config)])
    set_first_path(config)
    os.set_inheritable(config["stacks"], False)
    reporter = Reporter(config["report"])
    code = _run(config, reporter)
    groups = _process_groups()
    if code < 0 or (groups is not None and groups.are_alive()):  # -2: KeyboardInterrupt
        from . import interpreter_exit

        interpreter_exit.leave(code, (), is_forked=False)
    return code


def run_forked(config: Target, env: Mapping[str, str], fds: list[int]) -> NoReturn:
    """Turn this fork of the zygote into a rank; `fds`: stdin, stdout, stderr, report, stacks, and a function if any."""
    import signal

    from ..shared import processes
    from . import interpreter_exit, process_title, torch_adapter

    processes.default_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _take_stdio(fds[:3])
    _set_environment(env)
    process_title.set_title([sys.executable, *process_title.command(config)])
    torch_adapter.reseed()
    _forget_temporary_folder()
    kept = set(sys.modules) - {"__main__", "__mp_main__"}
    reporter = Reporter(fds[3])
    code = _run({**config, "stacks": fds[4], "call": fds[5:]}, reporter, is_forked=True)
    interpreter_exit.leave(code, kept, is_forked=True)


def _run(config: RankConfig, reporter: Reporter, *, is_forked: bool = False) -> int:
    import faulthandler

    from . import process_title

    faulthandler.enable()  # shows the Python line of a crash in C code
    if is_watched():
        # Works even while C code holds the GIL. Forked children inherit it.
        faulthandler.register(SIGNAL, file=config["stacks"], all_threads=True, chain=False)
        reporter.watch_groups()
    words = process_title.command(config)
    sys.argv = words[words.index(config["target"]) :]
    sys.orig_argv = [sys.executable, *words]
    if is_forked:
        from . import preloaded

        before = dict(os.environ)
        preloaded.hide(config["preload"], lambda package: _on_import(package, before, reporter))
    code = _guarded(lambda: _run_target(config, reporter), config, reporter)
    # What follows the script is guarded as well, because its signal handlers may raise there.
    return _guarded(lambda: _after_script(code, reporter), config, reporter)


def _guarded(run: Callable[[], int], config: Target, reporter: Reporter) -> int:
    """Return the exit code of `run()`, or of the exception that it raises."""
    caught: BaseException
    try:
        return run()
    except BaseException as error:
        caught = error
    try:  # not in the `except` above: sys.exc_info() is empty in an excepthook
        return _on_exception(caught, config, reporter)
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
        return 1


def _after_script(code: int, reporter: Reporter) -> int:
    reporter.last_look()
    if code == 0:
        _hold(reporter)
    return code


def _on_exception(error: BaseException, config: Target, reporter: Reporter) -> int:
    """Report an uncaught exception, print it as python does, and return the exit code."""
    if isinstance(error, SystemExit):
        return _exit_code(error, reporter)
    traceback = _users_part(error.__traceback__)
    reporter.exception(error, traceback)
    if config["kind"] == "function":
        from . import function_call

        function_call.send_exception(error, reporter)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback  # as python does
    sys.__dict__["last_exc"] = error  # from Python 3.12 on
    try:
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
    except SystemExit as leaving:
        return _exit_code(leaving, reporter)
    except BaseException as other:
        _print("Error in sys.excepthook:")
        sys.__excepthook__(type(other), other, _users_part(other.__traceback__))
        _print("\nOriginal exception was:")
        sys.__excepthook__(type(error), error, traceback)
    if not isinstance(error, KeyboardInterrupt):
        return 1
    from .interpreter_exit import INTERRUPTED

    return INTERRUPTED


def _on_import(package: str, before: Mapping[str, str], reporter: Reporter) -> None:
    """Apply the current environment when the script imports a package that the zygote has already imported."""
    from . import preloaded, torch_adapter

    torch_adapter.set_threads(os.environ)
    if package == "torch" and os.environ.get("TORCH_DISTRIBUTED_DEBUG") != before.get("TORCH_DISTRIBUTED_DEBUG"):
        torch_adapter.read_debug_level()
    late = preloaded.changed_since(before)
    if late and package == "torch":
        reporter.send({"t": "late", "names": late})


def _hold(reporter: Reporter) -> None:
    """Wait until every member of this rank's process groups has created them, up to a limit.

    A rank that exits closes its connections, which makes gloo fail in ranks that are still connecting.
    """
    groups = _process_groups()
    if groups is not None and not groups.have_all_joined(_HOLD_NOTICE):
        reporter.send({"t": "held", "limit": _HOLD_LIMIT})
        groups.have_all_joined(_HOLD_LIMIT - _HOLD_NOTICE)
        reporter.send({"t": "released"})


def _process_groups() -> ModuleType | None:
    """The module about the process groups of this rank; None if it has none, because it has not imported torch."""
    return sys.modules.get(f"{__package__}.torch_groups")


def set_first_path(config: Target) -> None:
    """Set sys.path[0] as `python script.py` or `python -m` would; the zygote already imports with it.

    A function gets its caller's sys.path: the directories before the interpreter's own, and those after.
    """
    if config["kind"] == "function":
        first, last = ([os.path.abspath(folder) for folder in folders] for folders in config["path"])
        sys.path[:] = [*first, *sys.path, *(folder for folder in last if folder not in sys.path)]
        return
    if getattr(sys.flags, "safe_path", False):
        return
    # The empty entry of `python -c` has already been removed by the bootstrap code.
    is_script = config["kind"] == "script"
    sys.path.insert(0, os.path.dirname(os.path.realpath(config["target"])) if is_script else os.getcwd())


def _run_target(config: RankConfig, reporter: Reporter) -> int:
    """Run the rank's script, module or function, and return its exit code."""
    from .frames import call_outermost

    main = type(sys)("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    # Kept after the script ends, because pickle and multiprocessing's spawn look the script up here.
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # multiprocessing's alias, created when the zygote imported it
        sys.modules["__mp_main__"] = main
    if config["kind"] == "function":
        from . import function_call

        code = function_call.run(config["call"][0], reporter)
        reporter.left("end")
        return code
    if config["kind"] == "module":
        import runpy

        # The function that `python -m` itself calls.
        call_outermost(partial(vars(runpy)["_run_module_as_main"], config["target"], alter_argv=True))
        reporter.left("end")
        return 0
    path = os.path.abspath(config["target"])
    main.__dict__.update(__file__=path, __cached__=None, __spec__=None, __loader__=SourceFileLoader("__main__", path))
    with open(path, "rb") as file:
        source = file.read()
    call_outermost(partial(exec, compile(source, path, "exec", dont_inherit=True), main.__dict__))
    reporter.left("end")
    return 0


def _exit_code(error: SystemExit, reporter: Reporter) -> int:
    code = error.code
    place = place_of(_users_part(error.__traceback__))
    if code is None or (isinstance(code, int) and code == 0):
        reporter.left("exit", place)
        return 0
    if isinstance(code, int):
        reporter.send({"t": "sysexit", "place": place, "text": ""})
        return code & 0xFF if abs(code) < 1 << 63 else 0xFF
    text = text_of(code)
    reporter.send({"t": "sysexit", "place": place, "text": text[:500]})
    _print(text)
    return 1


def _print(what: object) -> None:
    """Print to stderr, unless the script has closed it."""
    try:
        if sys.stderr is not None:  # type: ignore[redundant-expr]
            print(what, file=sys.stderr)
    except (OSError, ValueError):
        pass


def _users_part(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this package and of runpy, as plain python shows it."""
    package = __name__.rpartition(".")[0] + "."
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__"))
        if not module.startswith(package) and module not in _LOADERS:
            return traceback
        traceback = traceback.tb_next
    return None


def _take_stdio(fds: list[int]) -> None:
    """Use the rank's descriptors as stdin, stdout and stderr; output is unbuffered (`-u`), as under torchrun."""
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    # Re-create sys.stdin as python does: the old object still refers to the file that this code came from.
    raw = io.FileIO(0, closefd=False)
    raw.name = "<stdin>"
    stdin = io.TextIOWrapper(io.BufferedReader(raw), sys.stdin.encoding, sys.stdin.errors, "\n", raw.isatty())
    vars(stdin)["mode"] = "r"
    sys.stdin = sys.__stdin__ = stdin


def _set_environment(env: Mapping[str, str]) -> None:
    """Change the environment to `env`, touching only what differs, because setproctitle relies on its memory."""
    for name in [name for name in os.environ if name not in env]:
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _forget_temporary_folder() -> None:
    """Reset tempfile's cached directory, because a script may set TMPDIR before it uses tempfile."""
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].__dict__["tempdir"] = None

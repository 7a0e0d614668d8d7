"""Runs a function instead of a script: it arrives as a pickle, and its result or exception is sent back as one.

With `results="json"` the result is sent as JSON, and its exception only as text.

The pickle comes from the controller, which also sent this code, over the job's own channel.
"""

from __future__ import annotations

import os
import pickle
import sys
from _frozen_importlib import ModuleSpec
from base64 import b64encode

from .failure_text import type_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .reporter import Reporter

_PIECE = 3 << 14
"""Bytes of a pickle per message; in base64 they fill the pipe to the agent exactly once."""

_LARGEST_EXCEPTION = 64 << 20
"""Maximum size in bytes of an exception that is sent; it must arrive before the other ranks are stopped."""


_caller: dict[str, Any] = {}
"""The header that precedes the function: its name and the caller's versions."""


class Problem(Exception):
    """Why there is no result, as a message for the user; not raised by the function itself."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.hint = hint


def run(fd: int, reporter: Reporter) -> int:
    """Read a function from a descriptor, call it, send its result, and return the exit code."""
    try:
        function, args, kwargs = _load(fd)
        try:
            result = function(*args, **kwargs)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
            result = None
        _send(reporter, "returned", _as_json(result) if _is_json() else _pickled(result))
    except Problem as problem:
        reporter.problem(problem.sentence, problem.hint)
        sys.stderr.write(f"{problem.sentence}\n")
        return 1
    return 0


def _load(fd: int) -> Any:
    package = sys.modules[__name__.partition(".")[0]]
    # All ranks of a host share one file in memory; opening it again gives each its own file position.
    with open(f"/proc/self/fd/{fd}", "rb") as file:
        head = pickle.load(file)
        _caller.update(head)
        _provide_cloudpickle(head["cloudpickle"], head["modules"])
        _show_lines(head["lines"])
        package.__dict__["is_loading"] = True  # otherwise a module that calls launch() on import would recurse forever
        try:
            return pickle.load(file)
        except ModuleNotFoundError as error:
            raise Problem(
                f"{head['name']} needs the module `{error.name}`, which is not installed there", _MODULE_HINT
            ) from None
        except AttributeError as error:
            if not str(error).startswith("Can't get attribute"):
                raise
            raise Problem(
                f"could not find {head['name']} there: {error}", "check whether the code there is an older copy"
            ) from None
        finally:
            package.__dict__["is_loading"] = False
            os.close(fd)


_MODULE_HINT = (
    "install it on that host, or send it along: `cloudpickle.register_pickle_by_value(MODULE)` before the launch, "
    "or options=['--sync'] for the working directory"
)


def _pickled(result: Any) -> bytes:
    try:
        data = dumps(result)
        why = "" if _fits_caller(data) else "it contains code, and the caller runs a different version of Python"
    except Exception as error:
        data, why = b"", str(error).partition("\n")[0] or type(error).__name__
    if why:
        raise Problem(
            f"could not pickle its result ({type_name(result)}): {why}", "return plain values, arrays or tensors"
        )
    return data


def _is_json() -> bool:
    return _caller.get("results") == "json"


def _as_json(result: Any) -> bytes:
    import json

    try:
        return json.dumps(result).encode()
    except (TypeError, ValueError, RecursionError) as error:
        why = str(error).partition("\n")[0]
    raise Problem(
        f"could not convert its result ({type_name(result)}) to JSON: {why}",
        'return numbers, strings, lists and dicts, for example `tensor.tolist()`, or use results="pickle"',
    )


def send_exception(error: BaseException, reporter: Reporter) -> None:
    """Send an exception so that it can be re-raised: whole, or its class with the parts that can be pickled."""
    if not isinstance(error, Exception) or _is_json():
        return  # KeyboardInterrupt and similar concern only this process
    try:
        data = dumps(error)
        pickle.loads(data)  # an exception whose __init__ does not accept its `args` fails only here
    except Exception:
        try:
            args = error.args if _travels(error.args) else (str(error),)
            state = {name: value for name, value in vars(error).items() if _travels(value)}
            data = dumps((type(error), args, state))
        except Exception:
            return  # the report already contains everything else
    if len(data) <= _LARGEST_EXCEPTION and _fits_caller(data):
        _send(reporter, "raised", data)


def dumps(value: Any) -> bytes:
    """Pickle a value, including the code of functions and classes that are not in a module."""
    import cloudpickle

    return vars(cloudpickle)["dumps"](value)


def holds_code(data: bytes) -> bool:
    """Whether a pickle contains the code of functions or classes, not only their names."""
    return b"cloudpickle.cloudpickle" in data


def _fits_caller(data: bytes) -> bool:
    """Whether the caller can unpickle it: code from another Python version would crash its interpreter."""
    return _caller.get("python") == sys.version_info[:2] or not holds_code(data)


def _travels(value: Any) -> bool:
    try:
        pickle.loads(dumps(value))
    except Exception:
        return False
    return True


def _send(reporter: Reporter, kind: str, data: bytes) -> None:
    """Send a pickle in pieces; a final message completes it, so that a truncated one is never used."""
    view = memoryview(data)
    for at in range(0, len(data), _PIECE):
        reporter.send({"t": "piece", "piece": b64encode(view[at : at + _PIECE]).decode()})
    reporter.send({"t": kind})


def _show_lines(lines: dict[str, list[str]]) -> None:
    """Let tracebacks show source lines of the caller that are not in a file, such as notebook cells."""
    import linecache

    for name, text in lines.items():
        linecache.cache[name] = (sum(map(len, text)), None, text, name)


def _provide_cloudpickle(version: str, sources: dict[str, str]) -> None:
    """Make `import cloudpickle` load the controller's version: the installed one if it matches, or the one sent."""
    try:
        import cloudpickle

        if cloudpickle.__version__ == version:
            return
    except Exception:
        pass  # not installed here, or broken
    for name in [name for name in sys.modules if name.partition(".")[0] == "cloudpickle"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Sources(sources))


class _Sources:
    """Imports modules from source text; the shortest name is the package."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources
        self.package = min(sources, key=len)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self.sources:
            return None
        return ModuleSpec(name, self, is_package=name == self.package)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.sources[module.__name__], f"<muster>/{module.__name__}.py", "exec"), module.__dict__)

"""Pickles a function and its arguments for the hosts: with its code, by name, or an error about what cannot be sent."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import cloudpickle

from muster.controller.source_code import is_below
from muster.errors import UsageError
from muster.rank.failure_text import type_name
from muster.rank.function_call import dumps, holds_code
from muster.spec import Call


def carry(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, cwd: str, results: str = "pickle"
) -> Call:
    """Pickle a function with its arguments; UsageError names the part that cannot be pickled.

    `results` is how ranks send back what it returns: "pickle" or "json".
    """
    if not callable(function):
        raise UsageError(
            f"launch() needs a callable, got {type(function).__name__}",
            hint="for example muster.launch(train, args=(0.1,))",
        )
    if not isinstance(args, (tuple, list)):
        raise UsageError(
            f"args must be a tuple or a list, got {type(args).__name__}", hint="write args=(value,) for one argument"
        )
    if results not in ("pickle", "json"):
        hint = "json is for plain values, and nothing is unpickled"
        raise UsageError(f'results must be "pickle" or "json", got {results!r}', hint=hint)
    name = name_of(function)
    try:
        code, body = dumps(function), dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:
        why = _what_cannot(name, function, args, kwargs) or f"{name} cannot be pickled: {_first_line(error)}"
        raise UsageError(why, hint="create it inside the function, on each rank") from None
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    is_named = not holds_code(code)
    if is_named and module is not None:
        name = f"{module.__name__}.{name}"
    head = {
        "name": name,
        "results": results,
        "python": sys.version_info[:2],
        "cloudpickle": cloudpickle.__version__,
        "modules": _sources(cloudpickle),
        "lines": {} if is_named else _lines_without_file(),
    }
    return Call(
        name=name,
        data=pickle.dumps(head) + body,
        python=sys.version_info[:2] if holds_code(body) else None,
        file=_file_below(module, cwd) if is_named else "",
        path=split_path(sys.path, cwd),
        text=_text(module, function),
    )


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name for messages, without the enclosing function's."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name.rpartition("<locals>.")[2].replace("<lambda>", "lambda")


def split_path(entries: Sequence[str], cwd: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the caller's directories in sys.path: those before the interpreter's own, and those after.

    Directories below the working directory are relative to it, because it may differ on a host.
    """
    first: list[str] = []
    last: list[str] = []
    met_own = False
    for entry in entries:
        folder = os.path.join(cwd, entry)
        if _is_interpreters(folder):
            met_own = True
        elif os.path.isdir(folder):
            (last if met_own else first).append(os.path.relpath(folder, cwd) if is_below(folder, cwd) else folder)
    return tuple(dict.fromkeys(first)), tuple(dict.fromkeys(last))


def _is_interpreters(folder: str) -> bool:
    library = os.path.dirname(os.__file__)
    if folder == library or folder.startswith(library + os.sep) or re.search(r"[/\\]python\d+\.zip$", folder):
        return True
    return not {"site-packages", "dist-packages"}.isdisjoint(folder.split(os.sep))


def _file_below(module: ModuleType | None, cwd: str) -> str:
    """Return the file of a module if it is in the working directory and not installed there."""
    file = getattr(module, "__file__", None)
    if not file or not is_below(file, cwd) or _is_interpreters(os.path.abspath(file)):
        return ""
    return os.path.relpath(os.path.realpath(file), os.path.realpath(cwd))


def _sources(package: ModuleType) -> dict[str, str]:
    """Return the source of each module of a pure-Python package, for hosts that do not have it."""
    import pkgutil
    from importlib.abc import InspectLoader
    from importlib.util import find_spec

    texts: dict[str, str] = {}
    below = (f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__))
    for name in (package.__name__, *below):
        spec = find_spec(name)
        assert spec is not None
        assert isinstance(spec.loader, InspectLoader)
        texts[name] = spec.loader.get_source(name) or ""
    return texts


def _lines_without_file() -> dict[str, list[str]]:
    """Return source that hosts have no file of, for their tracebacks: notebook cells and the caller's script."""
    lines: dict[str, list[str]] = {}
    cache: dict[Any, Any] = vars(linecache)["cache"]
    for name, entry in cache.items():
        if isinstance(name, str) and len(entry) == 4 and entry[1] is None:  # size, time of change, lines, full name
            lines[name] = entry[2]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return {**lines, script: linecache.getlines(script)} if script else lines


def _text(module: ModuleType | None, function: Callable[..., Any]) -> str:
    for thing in (module, function):
        try:
            return inspect.getsource(thing)  # type: ignore[arg-type]
        except (OSError, TypeError):
            continue
    return ""


def _what_cannot(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    why = _why_not(function)
    if why:
        for variable, value in _variables_of(function):
            inner = _why_not(value)
            if inner:
                return f"{name} uses `{variable}` ({type_name(value)}), which cannot be pickled: {inner}"
        return f"{name} cannot be pickled: {why}"
    given = {**{f"args[{place}]": value for place, value in enumerate(args)}}
    given |= {f"kwargs[{key!r}]": value for key, value in kwargs.items()}
    for place, value in given.items():
        why = _why_not(value)
        if why:
            return f"{place} ({type_name(value)}) cannot be pickled: {why}"
    return None


def _variables_of(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    if hasattr(function, "__self__"):
        yield "self", getattr(function, "__self__")  # noqa: B009
    try:
        used = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return  # a class or a callable object
    yield from {**used.nonlocals, **used.globals}.items()


def _why_not(value: Any) -> str:
    try:
        dumps(value)
    except Exception as error:
        return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__

"""Reads a script before ranks start, to report an error that would hit every rank once, before torch is imported."""

from __future__ import annotations

import _ast
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from muster.errors import ScriptError
from muster.job import Job
from muster.text import names

_LARGEST = 256 << 10
"""Bytes of a script above which it is not read: compiling it could delay the start."""

_HARMLESS = frozenset({"torch", "numpy"}) | sys.stdlib_module_names
"""Modules that do not change where others are found."""


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What the source of a job shows before it runs."""

    syntax_error: str = ""
    """As Python prints it."""
    imports: tuple[tuple[str, int], ...] = ()
    """The modules it imports before anything else, and the line of each; those behind a module that may change
    sys.path are left out, so that a missing one is missing for certain."""


def read_job(job: Job) -> Preflight:
    """Read the script of a job, or note the module that `-m` needs."""
    look = _read(job)
    # With these, ranks may find modules where the agent that is asked does not.
    is_unknown = job.spec.preload or any(name.startswith("PYTHON") for name in job.spec.env)
    return Preflight(syntax_error=look.syntax_error) if is_unknown else look


def _read(job: Job) -> Preflight:
    if job.spec.kind == "module" and job.script is None:
        return Preflight(imports=((job.spec.target.partition(".")[0], 0),))
    if job.spec.kind != "script" or job.script is None:
        return Preflight()
    return read_script(Path(job.spec.cwd, job.script.path))


def read_script(path: Path) -> Preflight:
    """Compile a script without running it."""
    try:
        data = path.read_bytes()
        if len(data) > _LARGEST:
            return Preflight()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks will show them
            tree = cast(_ast.Module, compile(data, str(path), "exec", _ast.PyCF_ONLY_AST, dont_inherit=True))
            compile(tree, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        if error.msg.startswith(("unknown encoding", "encoding problem")):
            return Preflight()  # the Python of the ranks may have a package with this codec
        from traceback import format_exception_only

        return Preflight(syntax_error="".join(format_exception_only(error)).rstrip())
    except (OSError, ValueError, RecursionError, MemoryError):
        return Preflight()  # whatever it is, the ranks will show it
    return Preflight(imports=tuple(_first_imports(tree.body)))


def check_syntax(job: Job, look: Preflight, versions: Sequence[Sequence[int]]) -> None:
    """Report a syntax error, if ranks have the same version of Python as this process."""
    if look.syntax_error and all(tuple(version) == sys.version_info[:2] for version in versions):
        raise ScriptError(f"{job.spec.target} has a syntax error; no rank was started\n{look.syntax_error}")


def check_imports(job: Job, look: Preflight, missing: Sequence[tuple[str, str, str]]) -> None:
    """Report a module that hosts lack; `missing` has a host, its Python and the module for each of them."""
    if not missing:
        return
    _, python, module = missing[0]
    hosts = names([host for host, _, absent in missing if absent == module])
    line = next((line for name, line in look.imports if name == module), 0)
    where = f"{job.spec.target}:{line}: " if line else ""
    hint = "install it there, or choose another Python with `--python PATH`"
    if module == "muster":
        hint = "this Python has no Muster: install Muster there, or use torch.distributed directly"
    elif job.spec.kind == "module" and not line:
        hint = f"the working directory is {job.spec.cwd}; go to the directory that contains {module}, or {hint}"
    raise ScriptError(
        f"{where}No module named '{module}' on {hosts} ({python}); no rank was started",
        hint=hint,
    )


def _first_imports(body: Sequence[_ast.stmt]) -> Iterator[tuple[str, int]]:
    for node in body:
        if isinstance(node, _ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, _ast.ImportFrom) and not node.level and node.module:
            modules = [node.module]
        elif isinstance(node, _ast.Expr) and isinstance(node.value, _ast.Constant):
            continue  # a docstring
        else:
            return
        for module in modules:
            name = module.partition(".")[0]
            yield name, node.lineno
            if name not in _HARMLESS:
                return

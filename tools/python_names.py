"""The page of Muster's public Python names, read from the source: signatures, docstrings, comments on fields."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

ORDER = (
    *("run", "RunSpec", "Outcome", "launch", "LaunchError", "init", "World", "detect", "Detection"),
    *("Checkpoints", "Batches", "Batch", "measure_shares", "Progress", "together", "warm_up"),
    *("MusterError", "UsageError"),
)
"""The order of the page; a public name that is missing here stops the build."""

HEAD = """\
# Python API

The public names of `import muster`. Each is loaded when it is first used, so the import itself is cheap. All of them
are optional: `muster run` runs scripts that do not import Muster. Guides: [`muster.run`](../python.md),
[`muster.launch`](../launch.md), [DDP](../ddp.md), [parts of a training loop](../recipes/training-loop.md).
"""


def python_page(source: Path) -> str:
    """All public names with their signatures and docstrings."""
    import muster

    homes = muster._HOMES
    if set(homes) != set(ORDER):
        raise SystemExit(f"tools/python_names.py: ORDER and muster.__all__ differ in {sorted(set(homes) ^ set(ORDER))}")
    parts = [HEAD]
    for name in ORDER:
        file = source.joinpath(*homes[name].split(".")).with_suffix(".py")
        tree = ast.parse(file.read_text(encoding="utf-8"))
        (node,) = (one for one in tree.body if getattr(one, "name", None) == name)
        parts.append(f"## muster.{name}\n")
        parts += _class(node) if isinstance(node, ast.ClassDef) else _function(node, f"muster.{name}")
    return "\n".join(parts)


def _function(node: ast.stmt, title: str) -> list[str]:
    assert isinstance(node, ast.FunctionDef)
    return [f"```python\n{_signature(node, title)}\n```\n", _doc(node)]


def _class(node: ast.ClassDef) -> list[str]:
    title = f"muster.{node.name}"
    init = next((one for one in _methods(node) if one.name == "__init__"), None)
    bases = [ast.unparse(base) for base in node.bases if ast.unparse(base) in ORDER]
    out = [f"```python\n{_signature(init, title)}\n```\n"] if init else []
    out += [f"A kind of `muster.{base}`.\n" for base in bases]
    out.append(_doc(node))
    fields = list(_fields(node)) + [(f"{one.name}", one.returns, _first(one)) for one in _properties(node)]
    if fields:
        out += ["| name | type | meaning |", "|---|---|---|"]
        for name, kind, words in fields:
            shown = f"`{ast.unparse(kind)}`".replace("|", "\\|") if kind is not None else ""
            out.append(f"| `{name}` | {shown} | {words} |")
        out.append("")
    for method in _methods(node):
        if not method.name.startswith("_"):
            out += [f"```python\n{_signature(method, f'{node.name}.{method.name}')}\n```\n", _doc(method)]
    return out


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    found = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    return [one for one in found if not one.decorator_list]


def _properties(node: ast.ClassDef) -> list[ast.FunctionDef]:
    found = [one for one in node.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
    return [one for one in found if any(ast.unparse(mark) == "property" for mark in one.decorator_list)]


def _fields(node: ast.ClassDef) -> list[tuple[str, ast.expr | None, str]]:
    """Annotated fields of the class, and attributes that `__init__` sets and describes."""
    found: list[tuple[str, ast.expr | None, str]] = []
    for body in (node.body, *(one.body for one in _methods(node) if one.name == "__init__")):
        for one, after in zip(body, [*body[1:], None], strict=True):
            words = _words_after(after)
            if isinstance(one, ast.AnnAssign) and not ast.unparse(one.target).startswith(("_", "self._")):
                found.append((ast.unparse(one.target).removeprefix("self."), one.annotation, words))
            elif isinstance(one, ast.Assign) and words and ast.unparse(one.targets[0]).startswith("self."):
                found.append((ast.unparse(one.targets[0]).removeprefix("self."), None, words))
    return found


def _words_after(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split()).replace("|", "\\|")
    return ""


def _signature(node: ast.FunctionDef, title: str) -> str:
    arguments = node.args
    if arguments.args and arguments.args[0].arg == "self":
        arguments.args = arguments.args[1:]
    words = _arguments(arguments)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None and node.name != "__init__" else ""
    line = f"{title}({', '.join(words)}){returns}"
    if len(line) <= 90:
        return line
    return f"{title}(\n" + "".join(f"    {word},\n" for word in words) + f"){returns}"


def _arguments(arguments: ast.arguments) -> list[str]:
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults)
    words = [_argument(one, default) for one, default in zip(arguments.args, defaults, strict=True)]
    if arguments.kwonlyargs:
        words.append("*" if arguments.vararg is None else f"*{arguments.vararg.arg}")
    return words + [_argument(*one) for one in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(one.annotation)}" if one.annotation is not None else ""
    equals = " = " if kind else "="
    return one.arg + kind + (f"{equals}{ast.unparse(default)}" if default is not None else "")


def _doc(node: ast.ClassDef | ast.FunctionDef) -> str:
    """The docstring, with its `>>>` examples as code."""
    paragraphs = inspect.cleandoc(ast.get_docstring(node) or "").split("\n\n")
    return "\n\n".join(f"```python\n{one}\n```" if one.startswith(">>>") else one for one in paragraphs) + "\n"


def _first(node: ast.FunctionDef) -> str:
    return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()).replace("|", "\\|")

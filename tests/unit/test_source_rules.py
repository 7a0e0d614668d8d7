"""How large files and functions may grow, and how often a file name may be used again."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60
MOST_REPEATED_NAMES = 10

LONG_FILES = {
    "src/muster/recipes/tacotron2/kernels.py",  # kernels that are read side by side
}
LONG_FUNCTIONS: set[str] = set()


def files() -> Iterator[Path]:
    """Everything written in Python but the users' programs of the conformance tests."""
    for folder in ("src", "benchmarks", "tools", "tests"):
        yield from (file for file in (ROOT / folder).rglob("*.py") if "torchrun/programs" not in str(file))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node; ast.walk would also go through every expression, which takes four times as long."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, name, ()):
            yield child
            yield from statements(child)


def functions(file: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file with their numbers of lines."""
    name = file.relative_to(ROOT)
    for node in statements(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{name}: {node.name}", node.end_lineno - node.lineno + 1


def test_no_source_file_outgrows_its_reader():
    lines = {str(file.relative_to(ROOT)): len(file.read_bytes().splitlines()) for file in SOURCE.rglob("*.py")}
    assert {name for name, count in lines.items() if count >= MOST_LINES_OF_A_FILE} == LONG_FILES


def test_no_function_outgrows_a_screen():
    lines = [found for file in files() for found in functions(file)]
    assert {name for name, count in lines if count > MOST_LINES_OF_A_FUNCTION} == LONG_FUNCTIONS


def test_few_file_names_are_used_twice():
    names = Counter(file.name for file in SOURCE.rglob("*.py") if file.stem not in ("__init__", "__main__"))
    repeated = sorted(name for name, count in names.items() if count > 1)
    assert len(repeated) <= MOST_REPEATED_NAMES, ", ".join(repeated)

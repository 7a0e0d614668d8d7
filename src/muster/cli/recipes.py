"""`muster recipes`: lists the training recipes, or copies one into a directory."""

from __future__ import annotations

import ast
import shutil
import sys
from difflib import get_close_matches
from pathlib import Path

from muster.api.arguments import Parser, option
from muster.errors import UsageError

FOLDER = Path(__file__).parent.parent / "recipes"

EPILOG = """\
examples:
  muster recipes                        list them
  muster recipes copy hello             write hello.py into the working directory
  muster recipes copy hello --to src    write src/hello.py

Without a copy, a recipe runs as a module: muster run -m muster.recipes.hello
"""


def main(argv: list[str]) -> int:
    """List the recipes or copy one; return the exit code."""
    parser = Parser(
        prog="muster recipes",
        description="List the training recipes, or copy one to start from.",
        epilog=EPILOG,
    )
    commands = parser.add_subparsers(dest="command", metavar="copy")
    copy = commands.add_parser(
        "copy",
        help="copy the source of a recipe, which runs unchanged",
        description="Copy the source of a recipe into a directory, where it runs unchanged.",
        epilog="example:\n  muster recipes copy hello && muster run hello.py",
    )
    option(copy, "NAME", "a recipe that `muster recipes` lists")
    option(copy, "--to DIR", "directory to write to (default: the working directory)", default=".")
    option(copy, "--force", "overwrite existing files")
    args = parser.parse_args(argv)
    recipes = find_recipes()
    if args.command == "copy":
        target = copy_recipe(recipes, args.name, Path(args.to), force=args.force)
        print(target)
        how = f"-m {target.name}` (in {args.to})" if target.is_dir() else f"{target}`"
        sys.stderr.write(f"run it with `muster run {how}\n")
        return 0
    width = max(map(len, recipes))
    for name, source in recipes.items():
        print(f"{name:<{width}}  {summary(source)}")
    return 0


def find_recipes() -> dict[str, Path]:
    """Return the source of every recipe by name: a file, or a directory for larger ones."""
    entries = sorted(FOLDER.iterdir())
    recipes = [e for e in entries if e.suffix == ".py" or (e / "__init__.py").is_file()]
    return {entry.stem: entry for entry in recipes if not entry.name.startswith("_")}


def summary(source: Path) -> str:
    """Return the first line of a recipe's docstring, without running the recipe."""
    file = source / "__init__.py" if source.is_dir() else source
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".")


def copy_recipe(recipes: dict[str, Path], name: str, folder: Path, *, force: bool) -> Path:
    """Write the source of a recipe into a directory and return its path; UsageError instead of overwriting files."""
    if name not in recipes:
        near = get_close_matches(name, recipes, n=1)
        raise UsageError(
            f"unknown recipe `{name}`",
            hint=f"did you mean `muster recipes copy {near[0]}`?" if near else "`muster recipes` lists them",
        )
    source = recipes[name]
    target = folder / source.name
    if target.exists() and not force:
        raise UsageError(f"{target} already exists", hint="overwrite it with --force, or write elsewhere with --to DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(
                source,
                target,
                ignore=shutil.ignore_patterns("__pycache__"),
                copy_function=shutil.copyfile,  # contents only: an installed file may be read-only
                dirs_exist_ok=True,
            )
        else:
            shutil.copyfile(source, target)
    except OSError as error:
        hint = "write elsewhere with --to DIR"
        raise UsageError(f"could not write {target} ({error.strerror})", hint=hint) from None
    return target

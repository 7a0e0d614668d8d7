"""A directory in which another user has left a file for each module that Muster could import."""

from __future__ import annotations

import sys
from pathlib import Path

OTHERS = ("cloudpickle", "cryptography", "muster", "muster_check", "numpy", "sitecustomize", "torch", "usercustomize")


def write_hostile_modules(folder: Path) -> Path:
    """Create the directory, with a script of the user's below it; returns the file that hostile modules write to."""
    (folder / "scripts").mkdir(parents=True)
    executed = folder.with_name(f"{folder.name}-executed")
    for name in {*sys.stdlib_module_names, *OTHERS}:
        # posix is built in, so that this file itself imports nothing.
        record = f"posix.open({str(executed)!r}, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND, 0o666)"
        (folder / f"{name}.py").write_text(f"import posix\nposix.write({record}, b'{name} ')\nraise ImportError\n")
    (folder / "scripts" / "mine.py").write_text("WORDS = 'from beside the script'\n")
    (folder / "scripts" / "own.py").write_text("import json, mine, socket, ssl\nprint(mine.WORDS)\n")
    return executed

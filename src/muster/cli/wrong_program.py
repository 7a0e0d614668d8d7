"""Refuses another launcher, a shell or any other program in the place of the script, and shows what to type."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence

from muster.errors import UsageError

PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
"""The names of Python interpreters."""

_LAUNCHERS = ("accelerate", "aprun", "deepspeed", "horovodrun", "jsrun", "mpiexec", "mpirun", "orterun", "srun")
_SHELLS = ("bash", "dash", "ksh", "sh", "zsh")


def refuse_program(command: Sequence[str], typed: Sequence[str]) -> None:
    """Raise UsageError if the command does not start with a Python script; `typed` is what precedes it."""
    word, name = command[0], os.path.basename(command[0])
    if name in _SHELLS or name.endswith(".sh"):
        _refuse_shell(command, typed)
    if name in _LAUNCHERS and ("/" in word or not os.path.isfile(word)):
        what, why = "a launcher, not a script", "; Muster starts the ranks itself, `--nproc N` per host"
    elif not os.path.exists(word) and not name.endswith(".py") and shutil.which(word):
        what, why = "a program, not a Python script", ""
    else:
        return
    start = _script_position(command)
    script = shlex.join([*typed, *command[start:]]) if start else f"{shlex.join(typed)} train.py"
    left_out = shlex.join(command[:start] if start else [word])
    raise UsageError(f"{name} is {what}", hint=f"leave out `{left_out}`{why}: `{script}`")


def _refuse_shell(command: Sequence[str], typed: Sequence[str]) -> None:
    script = next((word for word in command if word.endswith(".sh")), "")
    batch = typed[1] == "submit"
    line = "muster run" if batch else shlex.join(typed)
    then = "submit it with sbatch or qsub" if batch else f"run `bash {script or 'train.sh'}`"
    raise UsageError(
        f"{script or command[0]}: Muster runs Python scripts, not shell scripts",
        hint=f"write `{line} train.py` into {script or 'a shell script'} instead of `python train.py` "
        f"or `torchrun train.py`, then {then}",
    )


def _script_position(command: Sequence[str]) -> int:
    """Return the position of the Python script, or of `-m` after a python; 0 if there is neither."""
    for position, word in enumerate(command):
        after_python = position > 0 and PYTHON.fullmatch(os.path.basename(command[position - 1]))
        if word.endswith(".py") or (word == "-m" and after_python):
            return position
    return 0

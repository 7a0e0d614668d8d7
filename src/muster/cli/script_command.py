"""The part of the command line after Muster's options: a script, or a torchrun or python command that runs it."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

from muster.api.arguments import Parser
from muster.api.torchrun_options import MODULES
from muster.cli.wrong_program import PYTHON, refuse_program
from muster.errors import UsageError
from muster.spec import LOCAL_RANK

_SWITCHES = {
    "u": "PYTHONUNBUFFERED=1",
    "B": "PYTHONDONTWRITEBYTECODE=1",
    "O": "PYTHONOPTIMIZE=1",
    "OO": "PYTHONOPTIMIZE=2",
    "P": "PYTHONSAFEPATH=1",
    "s": "PYTHONNOUSERSITE=1",
    "v": "PYTHONVERBOSE=1",
    "Xdev": "PYTHONDEVMODE=1",
    "Xfaulthandler": "PYTHONFAULTHANDLER=1",
    "Xutf8": "PYTHONUTF8=1",
}
"""Options of python, each with the equivalent environment variable."""


def read_command(parser: Parser, options: argparse.Namespace, typed: Sequence[str]) -> list[str]:
    """Return the script with its arguments; options of a torchrun or python before it are added to `options`.

    UsageError for another program; `typed` is the command line before the script, for its hint.
    """
    command = _plain(options.command)
    while command:
        word = command[0]
        name = os.path.basename(word)
        if options.module and word in MODULES:
            options.module = False
            command = _torchrun(parser, options, command[1:])
            if command and word == "torch.distributed.launch" and not hasattr(options, "use_env"):
                command[1:1] = [LOCAL_RANK]
        elif not options.module and name == "torchrun":
            _set_python(options, word)
            command = _torchrun(parser, options, command[1:])
        elif not options.module and PYTHON.fullmatch(name):
            _set_python(options, word)
            vars(options).pop("no_python", None)  # torchrun --no-python python train.py
            command = _python(options, command[1:])
        else:
            break
    if command and not command[0]:
        what = "module" if options.module else "script"
        raise UsageError(f"the name of the {what} is empty", hint="check the variable that should contain it")
    if command and not options.module and not hasattr(options, "no_python"):
        refuse_program(command, typed)
    return command


def _plain(command: list[str]) -> list[str]:
    return command[1:] if command[:1] == ["--"] else command


def _torchrun(parser: Parser, options: argparse.Namespace, words: list[str]) -> list[str]:
    """Parse torchrun's options in addition to Muster's; like torchrun, the default is one rank per host."""
    if getattr(options, "nproc", None) is None:
        options.nproc = 1
    options.command = []
    return _plain(parser.parse_args(words, options).command)


def _python(options: argparse.Namespace, words: list[str]) -> list[str]:
    """Parse python's options, up to the script or module."""
    switches, rest = _switches(words)
    if switches and re.match("m.", switches[-1]):
        options.module = True
        rest = [switches.pop()[1:], *rest]
    warnings = ",".join(switch[1:] for switch in switches if switch.startswith("W"))
    env = [_variable(switch) for switch in switches if not switch.startswith("W")]
    options.env = [*env, *([f"PYTHONWARNINGS={warnings}"] if warnings else []), *options.env]
    return rest


def _switches(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the options of python without dashes, with their values (the last may be -m), and the words after them."""
    rest, switches = list(words), list[str]()
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        letters = word[1:] or word
        while letters:
            whole = letters in _SWITCHES or word.startswith("--")
            switch, letters = (letters, "") if whole else (letters[0], letters[1:])
            if switch in ("c", "m", "W", "X") and (letters or rest):
                switch, letters = switch + (letters or rest.pop(0)), ""
            switches.append(switch)
            if switch.startswith(("c", "m")) and len(switch) > 1:
                return switches, rest
    return switches, rest


def _variable(switch: str) -> str:
    """Return the environment variable that is equivalent to an option of python."""
    if switch == "-" or switch.startswith("c"):
        given = "-" if switch == "-" else "-c"
        raise UsageError(
            f"python {given}: Muster runs a script or a module, not code from stdin or the command line",
            hint="save the code in a file and run `muster run FILE.py`",
        )
    if switch not in _SWITCHES:
        raise UsageError(
            f"python -{switch}: not supported, because Muster starts the interpreter itself",
            hint="leave it out, or use `--env NAME=VALUE` if python reads an environment variable instead",
        )
    return _SWITCHES[switch]


def _set_python(options: argparse.Namespace, word: str) -> None:
    """Set --python to the interpreter of the typed python or torchrun, unless it is given."""
    found = _interpreter(word)
    if found and "python" not in options.typed:
        options.python, options.host_python = found, {}


def _interpreter(word: str) -> str | None:
    """Return the value of --python that matches the typed python or torchrun; None if it is Muster's default."""
    folder, name = os.path.split(word)
    if not folder:
        ours = ("torchrun", "python", "python3", f"python3.{sys.version_info.minor}")
        return None if name in ours else name
    path = os.path.join(os.path.abspath(folder), "python" if name == "torchrun" else name)
    if name == "torchrun" and not os.path.exists(path):
        return None
    same_folder = os.path.dirname(path) == os.path.dirname(sys.executable)
    return None if same_folder and os.path.realpath(path) == os.path.realpath(sys.executable) else path

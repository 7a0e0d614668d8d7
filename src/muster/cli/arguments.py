"""An argument parser that speaks as the rest of Muster does: one sentence, and a hint."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import Any, NoReturn

from muster.errors import UsageError


class Parser(argparse.ArgumentParser):
    """argparse with Muster's errors, no abbreviations, and examples kept as they are written."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)
        self.taking_options: set[str] = set()
        """Options whose value may itself begin with a dash: `--mpi-args -v`."""
        self._before = ""

    def _parse_optional(self, arg_string: str) -> Any:
        before, self._before = self._before, arg_string
        return None if before in self.taking_options else super()._parse_optional(arg_string)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print with its usage."""
        unknown = re.search(r"unrecognized arguments: (--?[\w-]+)", message)
        hint = f"`{self.prog} --help` lists the options and shows examples"
        if unknown:
            from difflib import get_close_matches

            word = unknown.group(1)
            near = get_close_matches(word, self._option_string_actions, n=1)
            message = f"there is no option {word}"
            hint = f"did you mean `{near[0]}`?" if near else hint
        raise UsageError(f"{self.prog}: {message}", hint=hint)


def words(text: str) -> tuple[str, ...]:
    """Words as a shell would cut them."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"`{text}`: {str(error).lower()}") from None


def positive(text: str) -> int:
    """A number above 0."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number above 0")
    return int(text)


def natural(text: str) -> int:
    """A whole number."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number")
    return int(text)


def port(text: str) -> int:
    """A TCP port."""
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"`{text}` is not a port: 1 to 65535")
    return int(text)


def seconds(text: str) -> float:
    """A time in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"`{text}` is not a number of seconds")
    return value

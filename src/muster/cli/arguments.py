"""An argument parser that speaks as the rest of Muster does: one sentence, and a hint."""

from __future__ import annotations

import argparse
import re
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

"""A position in a text, and errors that point at it."""

from __future__ import annotations

import re

from muster.errors import UsageError

_WIDTH = 72  # maximum characters of the text shown in an error, so that the caret stays on the same screen line
_SPACES = re.compile(r"[ \t]*")
_DIGITS = re.compile(r"[0-9]+")
_LONGEST_NUMBER = 18  # digits; longer numbers appear in no host name, and int() takes quadratic time on them


def printable(text: str) -> str:
    """Return the text with one column per character and without control characters."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


class Reader:
    """Reads one text from left to right; every error gives the source and points at a character."""

    def __init__(self, text: str, source: str, *, end: int | None = None) -> None:
        self.text = text
        self.source = source
        self.at = 0
        self.end = len(text) if end is None else end

    @property
    def next(self) -> str:
        """The character at this position, or an empty string at the end."""
        return self.text[self.at] if self.at < self.end else ""

    def accept(self, token: str) -> bool:
        """Step over `token` if it comes next."""
        found = self.text.startswith(token, self.at, self.end)
        if found:
            self.at += len(token)
        return found

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Step over what `pattern` matches here and return it; None without a match."""
        match = pattern.match(self.text, self.at, self.end)
        if match is None:
            return None
        self.at = match.end()
        return match.group()

    def skip_spaces(self) -> None:
        """Step over spaces and tabs."""
        self.match(_SPACES)

    def number(self, what: str, hint: str) -> str:
        """Step over the digits of a number and return them as written."""
        start = self.at
        digits = self.match(_DIGITS)
        if digits is None:
            raise self.error(f"missing {what}", hint=hint)
        if len(digits) > _LONGEST_NUMBER:
            raise self.error(f"a number has at most {_LONGEST_NUMBER} digits", at=start, hint=hint)
        return digits

    def error(self, sentence: str, *, hint: str, at: int | None = None) -> UsageError:
        """Return an error that shows the text with a caret under the character at `at` (default: this position)."""
        place = self.at if at is None else at
        if not self.text.strip():
            return UsageError(f"{self.source}: no host given", hint=hint)
        shown = printable(self.text)
        start = max(0, place - _WIDTH // 2) if len(shown) > _WIDTH else 0
        piece = shown[start : start + _WIDTH]
        left = "..." if start > 0 else ""
        right = "..." if start + _WIDTH < len(shown) else ""
        caret = " " * (len(left) + place - start) + "^"
        return UsageError(f"{self.source}: {sentence}\n  {left}{piece}{right}\n  {caret}", hint=hint)

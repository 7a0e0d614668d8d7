"""Splits streamed text into lines."""

from __future__ import annotations

import re
from typing import NamedTuple


def as_bytes(text: str) -> bytes:
    """Text as its original bytes; a lone surrogate that was not a byte is written as an escape sequence."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


class Line(NamedTuple):
    """A line of output and its end: a newline, a carriage return (a progress bar), or nothing yet."""

    text: str
    end: str


def without_rank_tag(text: str, rank: int) -> str:
    """A line of a rank without the `[rank1]:` that torch puts before it: the screen adds its own label."""
    tag = f"[rank{rank}]:"
    return text[len(tag) :].removeprefix(" ") if text.startswith(tag) else text


_LONGEST = 1 << 20
"""Characters after which an unfinished line is shown in pieces; the log file has the whole line."""

_LONGEST_BAR = 4096
"""Characters after which unfinished text is no longer a progress bar: each piece would be joined with all before it."""

_ENDS = re.compile(r"\r\n|\n|\r")

_UP = "\x1b[A"
"""Moves the cursor up: nested bars of tqdm end with as many as they are lines below the first."""


def _without_moves(text: str) -> str:
    """The text without the cursor movements at its end."""
    while text.endswith(_UP):
        text = text[: -len(_UP)]
    return text


class LineSplitter:
    """Splits a stream at newlines and carriage returns, wherever its chunks end."""

    def __init__(self) -> None:
        self._unfinished: list[str] = []
        self._length = 0
        self._open_return = False
        """The last character was a carriage return: it may be the first half of \\r\\n."""
        self._is_bar = False
        """The unfinished text follows a carriage return."""
        self._down = 0
        """Newlines to come that only lead back to a nested progress bar."""

    def feed(self, text: str) -> list[Line]:
        """The lines that `text` completes; only the new text is searched."""
        if self._open_return:
            text, self._open_return = "\r" + text, False
        if text.endswith("\r"):
            text, self._open_return = text[:-1], True
        lines: list[Line] = []
        start = 0
        for match in _ENDS.finditer(text):
            whole, end = self._take(text[start : match.start()]), match.group()
            start = match.end()
            self._is_bar = end == "\r"
            if self._is_bar or self._down or whole.endswith(_UP):
                lines += self._bar_lines(whole, end)
            else:
                lines.append(Line(whole, "\n"))
        if start < len(text):
            self._unfinished.append(text[start:])
        self._length += len(text) - start
        if self._length > _LONGEST:
            lines.append(Line(self._take(""), ""))
        return lines

    @property
    def bar(self) -> str:
        """The unfinished text where it is the state of a progress bar: before or after a carriage return."""
        is_bar = (self._is_bar or self._open_return) and self._length <= _LONGEST_BAR
        return _without_moves("".join(self._unfinished)) if is_bar else ""

    def finish(self) -> list[Line]:
        """The rest when the stream has ended."""
        self._open_return = False
        rest = self._take("")
        return [Line(rest, "")] if rest else []

    def _bar_lines(self, text: str, end: str) -> list[Line]:
        """The line, unless it is one of the empty pieces around progress bars."""
        if end == "\r":
            return [Line(text, "\r")] if text else []  # tqdm writes \r before each bar
        if text.endswith(_UP):
            bar = _without_moves(text)
            self._down = (len(text) - len(bar)) // len(_UP) - 1  # the newline leads back down by one line
            return [Line(bar, "\r")]
        if not text:
            self._down -= 1
            return []
        self._down = 0
        return [Line(text, "\n")]

    def _take(self, last: str) -> str:
        if not self._unfinished:
            return last
        whole = "".join([*self._unfinished, last])
        self._unfinished.clear()
        self._length = 0
        return whole

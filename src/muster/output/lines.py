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

_ENDS = re.compile(r"\r\n|\n|\r")


class LineSplitter:
    """Splits a stream at newlines and carriage returns, wherever its chunks end."""

    def __init__(self) -> None:
        self._unfinished: list[str] = []
        self._length = 0
        self._open_return = False
        """The last character was a carriage return: it may be the first half of \\r\\n."""

    def feed(self, text: str) -> list[Line]:
        """The lines that `text` completes; only the new text is searched."""
        if self._open_return:
            text, self._open_return = "\r" + text, False
        if text.endswith("\r"):
            text, self._open_return = text[:-1], True
        lines: list[Line] = []
        start = 0
        for match in _ENDS.finditer(text):
            line = Line(self._take(text[start : match.start()]), "\r" if match.group() == "\r" else "\n")
            start = match.end()
            # tqdm writes \r before the bar, which gives an empty piece before each bar.
            if line.text or line.end == "\n":
                lines.append(line)
        self._unfinished.append(text[start:])
        self._length += len(text) - start
        if self._length > _LONGEST:
            lines.append(Line(self._take(""), ""))
        return lines

    def finish(self) -> list[Line]:
        """The rest when the stream has ended."""
        self._open_return = False
        rest = self._take("")
        return [Line(rest, "")] if rest else []

    def _take(self, last: str) -> str:
        whole = "".join([*self._unfinished, last])
        self._unfinished.clear()
        self._length = 0
        return whole

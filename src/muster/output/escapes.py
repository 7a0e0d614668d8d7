"""Text from ranks, hosts and other users' processes, made harmless for a terminal. Pure."""

from __future__ import annotations

import codecs
import re
from typing import TextIO

from muster.output.lines import as_bytes

_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9b-\x9f]*"
"""OSC and DCS up to their end: titles, the clipboard. None contains the start of another, or many would cost n²."""

ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colors, cursor moves, erasing
    rf"|{_STRING}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
"""An escape sequence, whole."""

STYLE = re.compile(r"\x1b\[[0-9;:]*m")
"""A sequence that changes colors only (SGR)."""

_CONTROL = re.compile(rf"{STYLE.pattern}|{ESCAPE.pattern}|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MOVE = re.compile(r"\x1b\[(?:[0-9]*A|[JK])")
"""A sequence with which Muster itself draws progress bars: up, and erase what follows."""

_INCOMPLETE = re.compile(rf"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*|{_STRING}\x1b?|\x1b[ -/]*)\Z")
"""A sequence at the end of a text that may continue."""

_HELD_BACK = 4096
"""Characters of an incomplete sequence that wait for their end."""

_SURROGATE = re.compile("[\udc80-\udcff]")
_C1_BYTE = re.compile("[\udc80-\udc9f]")
"""A byte that is no UTF-8 and that a terminal with another encoding obeys."""

RESET = "\x1b[0m"


def for_terminal(line: str) -> str:
    """A line with its colors and tabs, but without anything else that a terminal would obey.

    Only what is written to a terminal goes through here: pipes and log files get every byte as it was written. Colors
    end with the line, so that no line can hide those after it.
    """
    if line.isprintable():  # the usual case must be fast
        return line
    if _SURROGATE.search(line):  # bytes of one character that came in two pieces are one again
        line = _C1_BYTE.sub("\ufffd", as_bytes(line).decode("utf-8", "surrogateescape"))
    clean = _CONTROL.sub(lambda found: found[0] if STYLE.fullmatch(found[0]) else "", line)
    return clean + RESET if "\x1b" in clean and not clean.endswith(RESET) else clean


def clean_for(stream: TextIO, text: str) -> str:
    """Text of several lines as it is printed to a stream: harmless if that is a terminal, else unchanged."""
    return "\n".join(map(for_terminal, text.split("\n"))) if stream.isatty() else text


class TerminalStream:
    """Output that another Muster process has made for a terminal, made harmless again, as that process may lie."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held = ""
        """The beginning of a sequence that may continue in the next piece."""

    def feed(self, data: bytes) -> bytes:
        """The next piece, as far as it is complete; colors and progress bars stay."""
        text = self._held + self._decoder.decode(data)
        incomplete = _INCOMPLETE.search(text, max(0, len(text) - _HELD_BACK))
        self._held = incomplete[0] if incomplete else ""
        text = _C1_BYTE.sub("\ufffd", text[: len(text) - len(self._held)])
        return as_bytes(_CONTROL.sub(self._kept, text))

    @staticmethod
    def _kept(found: re.Match[str]) -> str:
        text = found[0]
        return text if text == "\r" or STYLE.fullmatch(text) or _MOVE.fullmatch(text) else ""


def visible(text: str) -> str:
    """The text without escape sequences."""
    return ESCAPE.sub("", text) if "\x1b" in text or not text.isascii() else text

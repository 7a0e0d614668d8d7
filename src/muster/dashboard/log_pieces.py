"""Parts of a log, never the whole: the end of it, what is new in it, and the lines that contain some text."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from muster.jobs.kept_files import open_regular
from muster.output.escapes import visible

_MOST_BYTES = 64 << 10
"""Read for one piece."""

_MOST_LINES = 1000
"""In one piece: a browser has to lay them out."""

_LONGEST_LINE = 4000
"""Characters of a line that are sent."""

_FIRST_BLOCK, _BLOCK = 256 << 10, 4 << 20
"""Bytes searched at a time: few at first, for a search through a thousand logs reads this much of each."""

_MOST_FOUND = 200
"""Lines of one answer to a search, in one log or in all of them."""

_VISIBLE = {code: 0x2400 + code for code in range(32) if code != 9} | {0x7F: 0x2421}
"""Control characters as the symbols that Unicode has for them."""


class Line(NamedTuple):
    """One line of a log."""

    at: int
    """Where it begins, in bytes."""
    text: str


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Lines of one log that follow each other, or that were found in it."""

    start: int
    """Where it begins, or how far back the search has come."""
    end: int
    """Where the next piece begins."""
    size: int
    """Of the whole log, in bytes."""
    lines: tuple[Line, ...]
    unfinished: str = ""
    """The text after the end of the last line, such as a progress bar."""
    skipped: int = 0
    """Bytes between what was asked for and this piece, because the rank writes faster than anyone reads."""

    def as_data(self) -> dict[str, Any]:
        """The piece as JSON can hold it."""
        return vars(self)


NOTHING = Piece(start=0, end=0, size=0, lines=())
"""A log to which nothing has been written."""


def last_lines(path: Path, before: int | None = None) -> Piece:
    """The end of a log, or the lines that end at byte `before`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        end = size if before is None else max(0, min(before, size))
        return _piece(file, max(0, end - _MOST_BYTES), end, size)


def new_lines(path: Path, since: int) -> Piece:
    """What was written after byte `since`; only the end of it if that is a lot."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if 0 <= size - since <= _MOST_BYTES:
            return _piece(file, since, size, size, whole=True)
        piece = _piece(file, max(0, size - _MOST_BYTES), size, size)
    return replace(piece, skipped=max(0, piece.start - since))


def find(path: Path, text: str, before: int | None = None, *, seconds: float = 1.0, most: int = _MOST_FOUND) -> Piece:
    """The last lines with `text` in them (capitals or not), oldest first; the search gives up after some seconds.

    `start` of what it returns is how far back it has come: 0 if all of the log was searched.
    """
    needle = text.encode("utf-8", "surrogateescape").lower()
    deadline = time.monotonic() + seconds
    found: list[Line] = []
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        first = end = size if before is None else max(0, min(before, size))
        length = _FIRST_BLOCK
        while end > 0 and len(found) < most:
            begin, block = _whole_lines(file, max(0, end - length), end)
            lines, rest = _find_backwards(block, needle, most - len(found))
            found += [Line(at=begin + at, text=_clean(line)) for at, line in lines]
            end, length = begin + rest, _BLOCK
            if time.monotonic() > deadline:
                break
    return Piece(start=end, end=first, size=size, lines=tuple(reversed(found)))


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of a search through the logs of all ranks."""

    lines: tuple[tuple[int, Line], ...]
    """Rank and line."""
    not_all_of: tuple[int, ...]
    """Ranks whose log has more such lines, or was not searched to its beginning."""

    def as_data(self) -> dict[str, Any]:
        """The lines that were found, as JSON can hold them."""
        return {"lines": [(rank, *line) for rank, line in self.lines], "not_all_of": self.not_all_of}


def find_in_all(paths: Mapping[int, Path], text: str, *, seconds: float = 2.0) -> Found:
    """The last lines with `text` in the log of each rank, all ranks having their share of the time and the lines."""
    deadline = time.monotonic() + seconds
    lines: list[tuple[int, Line]] = []
    not_all_of: list[int] = []
    for number, (rank, path) in enumerate(paths.items()):
        left = len(paths) - number
        try:
            share = (deadline - time.monotonic()) / left
            piece = find(path, text, seconds=max(0.0, share), most=max(1, (_MOST_FOUND - len(lines)) // left))
        except OSError:
            continue  # a rank that has written nothing has no log
        lines += [(rank, line) for line in piece.lines]
        if piece.start > 0:
            not_all_of.append(rank)
    return Found(lines=tuple(lines), not_all_of=tuple(not_all_of))


def _piece(file: BinaryIO, start: int, end: int, size: int, *, whole: bool = False) -> Piece:
    """The lines from `start` to `end`; the first is left out where it may have begun earlier."""
    if whole:
        file.seek(start)
        data = file.read(end - start)
    else:
        start, data = _whole_lines(file, start, end)
    pieces = data.split(b"\n")
    unfinished = pieces.pop()
    lines: list[Line] = []
    at = start
    for line in pieces:
        lines.append(Line(at=at, text=_clean(line)))
        at += len(line) + 1
    if len(lines) > _MOST_LINES and not whole:
        lines = lines[-_MOST_LINES:]
        start = lines[0].at
    return Piece(start=start, end=at, size=size, lines=tuple(lines), unfinished=_clean(unfinished))


def _whole_lines(file: BinaryIO, start: int, end: int) -> tuple[int, bytes]:
    """The bytes from the first beginning of a line, or from `start` if there is none; and where that is."""
    file.seek(start)
    data = file.read(end - start)
    cut = data.find(b"\n", 0, len(data) - 1) + 1 if start else 0
    return start + cut, data[cut:]


def _find_backwards(block: bytes, needle: bytes, most: int) -> tuple[list[tuple[int, bytes]], int]:
    """The last lines of a block that have the needle, last first, and where the part begins that was searched."""
    lower = block.lower()
    found: list[tuple[int, bytes]] = []
    end = len(block)
    while len(found) < most:
        at = lower.rfind(needle, 0, end)
        if at < 0:
            return found, 0
        begin = block.rfind(b"\n", 0, at) + 1
        stop = block.find(b"\n", at)
        found.append((begin, block[begin : stop if stop >= 0 else len(block)]))
        end = begin
    return found, end


def _clean(line: bytes) -> str:
    """A line as a terminal would show it at the end: without colors, and what stands after the last return."""
    text = visible(line.decode("utf-8", "replace"))
    text = text.rstrip("\r").rpartition("\r")[2].translate(_VISIBLE)
    if len(text) > _LONGEST_LINE:
        text = f"{text[:_LONGEST_LINE]} … ({len(text) - _LONGEST_LINE} more characters)"
    return text

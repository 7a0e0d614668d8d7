"""The logs of a job's ranks, read while they grow or afterwards: all merged in the order they came, or one as it is.

`muster.output.log_files.ORDER` describes the file that holds the order and the time of each piece of output.
"""

from __future__ import annotations

import codecs
import os
import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from muster.jobs.kept_files import entries, open_regular
from muster.output.lines import Line, LineSplitter
from muster.output.log_files import ORDER

_PIECE = 1 << 20
_MOST_OPEN = 128
"""Files held open at a time."""

_RECORD = re.compile(rb"(\d{1,7}) ([12]) (\d{1,9})(?: (\d{1,14}))?")
_LONGEST_RECORD = 64
"""Bytes of a line of ORDER; a longer one is damaged."""


class RankLine(NamedTuple):
    """A line of one rank."""

    rank: int
    line: Line
    time: float | None = None
    """When its end arrived, in seconds since 1970; None where the log does not say."""


class LogPiece(NamedTuple):
    """A line of ORDER."""

    rank: int
    stream: int
    length: int
    time: float | None


def attempts(folder: Path) -> list[int]:
    """The attempts of a job of which there are logs."""
    found = [re.fullmatch(r"attempt-(\d{1,6})", name, re.ASCII) for name in entries(folder)]
    return sorted({int(match[1]) for match in found if match})


def attempt_folder(folder: Path, attempt: int) -> Path:
    """Where the logs of an attempt are."""
    return folder / f"attempt-{attempt}"


def rank_log(folder: Path, attempt: int, rank: int) -> Path:
    """The file with all that a rank wrote."""
    return attempt_folder(folder, attempt) / f"rank-{rank}.log"


class Tail:
    """One file that may still grow, or not be there yet."""

    def __init__(self, path: Path, at: int = 0) -> None:
        self._path = path
        self._at = at

    def new(self) -> Generator[bytes]:
        """What has been added since the last time; nothing if the file cannot be read."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._at)
                while piece := file.read(_PIECE):
                    self._at += len(piece)
                    yield piece
        except OSError:
            return


class LogPieces:
    """The lines of an attempt's ORDER, read while it grows; a damaged one ends at the damage."""

    def __init__(self, folder: Path) -> None:
        self._tail = Tail(folder / ORDER)
        self._unfinished = b""
        self._is_damaged = False

    def new(self) -> Generator[LogPiece]:
        """The pieces that were added since the last time."""
        for data in () if self._is_damaged else self._tail.new():
            *records, self._unfinished = (self._unfinished + data).split(b"\n")
            for record in records:
                match = _RECORD.fullmatch(record)
                if match is None:
                    self._is_damaged = True
                    return
                when = None if match[4] is None else int(match[4]) / 1000
                yield LogPiece(int(match[1]), int(match[2]), int(match[3]), when)
            if len(self._unfinished) > _LONGEST_RECORD:
                self._is_damaged = True
                return


class LogTimes:
    """When each part of the ranks' logs of one attempt was written; call `update` to take in what is new."""

    def __init__(self, folder: Path) -> None:
        self._pieces = LogPieces(folder)
        self._ends = defaultdict[int, "array[int]"](lambda: array("q"))
        """By rank: where in its log each piece ends."""
        self._times = defaultdict[int, "array[float]"](lambda: array("d"))

    def update(self) -> None:
        """Read what was added to ORDER since the last time."""
        for rank, _, length, when in self._pieces.new():
            ends = self._ends[rank]
            ends.append((ends[-1] if ends else 0) + length)
            self._times[rank].append(when or 0.0)

    def at(self, rank: int, offset: int) -> float | None:
        """When the byte at `offset` of a rank's log was written, in seconds since 1970; None if that is not known."""
        ends = self._ends.get(rank)
        number = bisect_right(ends, offset) if ends is not None else 0
        return (self._times[rank][number] or None) if ends is not None and number < len(ends) else None


def pieces_before_last(folder: Path, lines: int, of: frozenset[int] | None) -> int:
    """How many pieces of an attempt come before its last lines (of these ranks), so that a long log is not read."""
    ranks, lengths = array("l"), array("q")
    ends = defaultdict[int, int](int)
    for piece in LogPieces(folder).new():
        ranks.append(piece.rank)
        lengths.append(piece.length)
        ends[piece.rank] += piece.length
    wanted = lines + 2 * len(ends)  # each stream may begin with the rest of a line
    for at in reversed(range(len(ranks))):
        if wanted <= 0:
            return at + 1
        number, length = ranks[at], lengths[at]
        ends[number] -= length
        if of is None or number in of:
            try:
                with open_regular(folder / f"rank-{number}.log") as file:
                    wanted -= os.pread(file.fileno(), length, ends[number]).count(b"\n")
            except OSError:
                return 0
    return 0


class Merged:
    """The lines of all ranks of an attempt, in the order in which they came."""

    def __init__(self, folder: Path, *, since: float | None = None, skip: int = 0) -> None:
        """With `since`, only what came then or later; what has no time is left out. `skip` pieces are not read."""
        self._folder = folder
        self._since = since
        self._skip = skip
        self._order = LogPieces(folder)
        self._behind: list[LogPiece] = []
        """Pieces that are announced and not written yet."""
        self._at: dict[int, int] = {}
        self._files: dict[int, BinaryIO] = {}
        decoder = codecs.getincrementaldecoder("utf-8")
        self._splitters = defaultdict[tuple[int, int], LineSplitter](LineSplitter)
        self._decoders = defaultdict[tuple[int, int], codecs.IncrementalDecoder](lambda: decoder("surrogateescape"))
        self._last_time: dict[tuple[int, int], float | None] = {}

    def new(self) -> Generator[RankLine]:
        """The lines that are complete since the last time."""
        try:
            for piece in self._pieces():
                if self._skip or (self._since is not None and (piece.time is None or piece.time < self._since)):
                    self._skip = max(0, self._skip - 1)
                    self._at[piece.rank] = self._at.get(piece.rank, 0) + piece.length
                    continue
                data = self._read(piece.rank, piece.length)
                if data is None:
                    self._behind.append(piece)
                else:
                    yield from self._lines(piece.rank, piece.stream, data, piece.time)
        finally:
            self._close()

    def rest(self) -> Generator[RankLine]:
        """What a rank's file has beyond what the order covers, including lines without an end."""
        yield from self.new()
        for rank in self._ranks() if self._since is None else ():
            for data in Tail(self._folder / f"rank-{rank}.log", self._at.get(rank, 0)).new():
                yield from self._lines(rank, 1, data, None)
        for (rank, stream), splitter in self._splitters.items():
            when = self._last_time.get((rank, stream))
            yield from (RankLine(rank, line, when) for line in splitter.finish())

    def _pieces(self) -> Generator[LogPiece]:
        behind, self._behind = self._behind, []
        for at, piece in enumerate(behind):
            if self._behind:  # a piece is missing still; what came after it waits too
                self._behind += behind[at:]
                return
            yield piece
        for piece in self._order.new():
            if self._behind:
                self._behind.append(piece)
            else:
                yield piece

    def _lines(self, rank: int, stream: int, data: bytes, when: float | None) -> Generator[RankLine]:
        text = self._decoders[rank, stream].decode(data)
        self._last_time[rank, stream] = when
        yield from (RankLine(rank, line, when) for line in self._splitters[rank, stream].feed(text))

    def _read(self, rank: int, length: int) -> bytes | None:
        """The next bytes of a rank's log; None if not all of them are there yet."""
        file = self._files.get(rank)
        if file is None:
            if len(self._files) >= _MOST_OPEN:
                self._close()
            try:
                file = self._files[rank] = open_regular(self._folder / f"rank-{rank}.log")
            except OSError:
                return None
        at = self._at.get(rank, 0)
        if os.fstat(file.fileno()).st_size < at + length:
            return None
        file.seek(at)
        self._at[rank] = at + length
        return file.read(length)

    def _ranks(self) -> list[int]:
        found = [re.fullmatch(r"rank-(\d{1,7})\.log", name, re.ASCII) for name in entries(self._folder)]
        return sorted({int(match[1]) for match in found if match})

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

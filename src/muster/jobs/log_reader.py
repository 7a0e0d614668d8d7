"""The logs of a job's ranks, read while they grow or afterwards: all merged in the order they came, or one as it is."""

from __future__ import annotations

import codecs
import re
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from muster.output.lines import Line, LineSplitter
from muster.output.log_files import ORDER

_PIECE = 1 << 20
_MOST_OPEN = 128
"""Files held open at a time."""


class RankLine(NamedTuple):
    """A line of one rank."""

    rank: int
    line: Line


def attempts(folder: Path) -> list[int]:
    """The attempts of a job of which there are logs."""
    found = [re.fullmatch(r"attempt-(\d+)", entry.name) for entry in folder.iterdir()]
    return sorted(int(match[1]) for match in found if match)


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
        """What has been added since the last time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                while piece := file.read(_PIECE):
                    self._at += len(piece)
                    yield piece
        except FileNotFoundError:
            return


class Merged:
    """The lines of all ranks of an attempt, in the order in which they came."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._order = Tail(folder / ORDER)
        self._unfinished = b""
        self._behind: list[tuple[int, int, int]] = []
        """Pieces that are announced and not written yet: rank, stream, bytes."""
        self._at: dict[int, int] = {}
        self._files: dict[int, BinaryIO] = {}
        decoder = codecs.getincrementaldecoder("utf-8")
        self._splitters = defaultdict[tuple[int, int], LineSplitter](LineSplitter)
        self._decoders = defaultdict[tuple[int, int], codecs.IncrementalDecoder](lambda: decoder("surrogateescape"))

    def new(self) -> Generator[RankLine]:
        """The lines that are complete since the last time."""
        try:
            for rank, stream, length in self._pieces():
                data = self._read(rank, length)
                if len(data) < length:
                    self._at[rank] -= len(data)
                    self._behind.append((rank, stream, length))
                else:
                    yield from self._lines(rank, stream, data)
        finally:
            self._close()

    def rest(self) -> Generator[RankLine]:
        """What a rank's file has beyond what the order tells, the lines without an end included."""
        yield from self.new()
        for rank in sorted(self._ranks()):
            for data in Tail(self._folder / f"rank-{rank}.log", self._at.get(rank, 0)).new():
                yield from self._lines(rank, 1, data)
        for (rank, _), splitter in self._splitters.items():
            yield from (RankLine(rank, line) for line in splitter.finish())

    def _pieces(self) -> Generator[tuple[int, int, int]]:
        behind, self._behind = self._behind, []
        for at, piece in enumerate(behind):
            if self._behind:  # a piece is missing still; what came after it waits too
                self._behind += behind[at:]
                return
            yield piece
        for data in self._order.new():
            *records, self._unfinished = (self._unfinished + data).split(b"\n")
            for record in records:
                rank, stream, length = map(int, record.split())
                if self._behind:
                    self._behind.append((rank, stream, length))
                else:
                    yield rank, stream, length

    def _lines(self, rank: int, stream: int, data: bytes) -> Generator[RankLine]:
        text = self._decoders[rank, stream].decode(data)
        yield from (RankLine(rank, line) for line in self._splitters[rank, stream].feed(text))

    def _read(self, rank: int, length: int) -> bytes:
        file = self._files.get(rank)
        if file is None:
            if len(self._files) >= _MOST_OPEN:
                self._close()
            try:
                file = self._files[rank] = (self._folder / f"rank-{rank}.log").open("rb")
            except FileNotFoundError:
                self._at.setdefault(rank, 0)
                return b""
        file.seek(self._at.get(rank, 0))
        data = file.read(length)
        self._at[rank] = self._at.get(rank, 0) + len(data)
        return data

    def _ranks(self) -> list[int]:
        try:
            found = [re.fullmatch(r"rank-(\d+)\.log", entry.name) for entry in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        return [int(match[1]) for match in found if match]

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

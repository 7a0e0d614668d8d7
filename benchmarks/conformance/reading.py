"""Output of ranks as lines that are equal in two runs if the ranks did the same."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import sqlite3
import zipfile
from collections.abc import Mapping
from pathlib import Path

_OF_TORCH = re.compile(r"(\[rank\d+\]:)?\[?[IWE]\d{4} \d\d:\d\d:\d\d")
"""A log line of torch, which includes the time, the process id and a line number of torch's source."""
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def normalize(data: bytes, places: Mapping[str, str]) -> list[str]:
    """Output as lines, with placeholders for directories (the longest first) and addresses."""
    text = data.decode("utf-8", "backslashreplace")
    for place in sorted(places, key=len, reverse=True):
        text = text.replace(place, places[place])
    lines = _ADDRESS.sub("0x...", text).split("\n")
    return [line for line in lines if not _OF_TORCH.match(line)]


def read(path: Path) -> bytes:
    """The content of a file that a rank wrote; for an archive what is in it, or why it cannot be read."""
    try:
        if path.suffix == ".gz":
            return gzip.decompress(path.read_bytes())
        if path.suffix == ".bz2":
            return bz2.decompress(path.read_bytes())
        if path.suffix == ".xz":
            return lzma.decompress(path.read_bytes())
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                return b"".join(name.encode() + b": " + archive.read(name) for name in archive.namelist())
        if path.suffix == ".sqlite":
            connection = sqlite3.connect(path)
            try:
                return "\n".join(connection.iterdump()).encode()
            finally:
                connection.close()
        if path.suffix in (".pt", ".distcp", ".metadata", ".h5", ".parquet"):
            return b"a file" if path.stat().st_size else b"an empty file"
        return path.read_bytes()
    except (OSError, EOFError, ValueError, lzma.LZMAError, zipfile.BadZipFile, sqlite3.Error) as error:
        return f"cannot be read: {type(error).__name__}: {error}".encode()

"""Sizes and rates as they are typed and printed."""

from __future__ import annotations

import re

from muster.errors import UsageError

_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_size(text: str) -> int:
    """Bytes of `64K`, `16M`, `1G` or `4096`, in steps of 1024 as nccl-tests counts them."""
    match = re.fullmatch(r"([0-9]{1,15})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise UsageError(f"`{text}` is not a size", hint="write it like 8, 64K, 16M or 1G")
    return int(match[1]) * _SCALE[match[2].upper()]


def sizes_between(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    """The smallest size, each next one `factor` times larger, and the largest."""
    if smallest > largest:
        raise UsageError(
            f"the smallest size, {size_text(smallest)}, is above the largest, {size_text(largest)}",
            hint="--min and --max say them",
        )
    sizes = [smallest]
    while sizes[-1] < largest:
        sizes.append(min(sizes[-1] * factor, largest))
    return tuple(sizes)


def size_text(size: int) -> str:
    """A size in a few letters: 8 B, 64 KB, 1 GB, in steps of 1024."""
    for letter in ("G", "M", "K"):
        if size >= _SCALE[letter]:
            return f"{significant(size / _SCALE[letter])} {letter}B"
    return f"{size} B"


def rate_text(rate: float) -> str:
    """Bytes per second as people say it: 1.18 GB/s, 4.7 MB/s, in steps of 1000."""
    for scale, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if rate >= scale:
            return f"{significant(rate / scale)} {unit}"
    return f"{significant(rate)} B/s"


def bit_rate_text(bits: float) -> str:
    """Bits per second as links are sold: 10 Gbit/s."""
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"


def time_text(seconds: float) -> str:
    """A time: 42.1 us, 3.2 ms, 1.5 s."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{significant(seconds / scale)} {unit}"
    return f"{significant(seconds * 1e6)} us"


def significant(value: float) -> str:
    """A number with three digits that count, or all of them before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"

"""Parsing of the sizes to measure."""

from __future__ import annotations

import re

from muster.errors import UsageError
from muster.text import size_text

_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_size(text: str) -> int:
    """Bytes of `64K`, `16M`, `1G` or `4096`, with units of 1024 as in nccl-tests."""
    match = re.fullmatch(r"([0-9]{1,15})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise UsageError(f"invalid size `{text}`", hint="write it like 8, 64K, 16M or 1G")
    return int(match[1]) * _SCALE[match[2].upper()]


def sizes_between(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    """The smallest size, then each `factor` times the previous one, and the largest."""
    if smallest > largest:
        raise UsageError(
            f"the smallest size ({size_text(smallest)}) is larger than the largest ({size_text(largest)})",
            hint="set them with --min and --max",
        )
    sizes = [smallest]
    while sizes[-1] < largest:
        sizes.append(min(sizes[-1] * factor, largest))
    return tuple(sizes)

"""Numbers, lists and paths as Muster prints them; standard library only, so that every command can import it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_MOST_PARTS = 16
"""Maximum numbers and ranges in a list of ranks; the rest becomes an ellipsis."""


def count(number: int, noun: str) -> str:
    """`1 rank`, `4 ranks`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def names(items: Sequence[str], most: int = 8) -> str:
    """All items if there are few, else the first ones: `a, b, c`, `a, b and 30 more`."""
    shown = items if len(items) <= most else items[: most - 2]
    return ", ".join(shown) + (f" and {len(items) - len(shown)} more" if len(shown) < len(items) else "")


def rank_list(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0, 1, 2`, `ranks 0-6, 8`."""
    listed = sorted(ranks)
    parts: list[str] = []
    position = 0
    while position < len(listed):
        last = position
        while last + 1 < len(listed) and listed[last + 1] == listed[last] + 1:
            last += 1
        if last - position < 3:
            parts += [str(rank) for rank in listed[position : last + 1]]
        else:
            parts.append(f"{listed[position]}-{listed[last]}")
        position = last + 1
    shown = ", ".join(parts if len(parts) <= _MOST_PARTS else [*parts[:_MOST_PARTS], "…"])
    return f"rank {shown}" if len(listed) == 1 else f"ranks {shown}"


def significant(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, or all digits before the decimal point."""
    return f"{value:.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def size_text(number: float, digits: int = 3) -> str:
    """`64 MB`, `1.5 GB`, `12 bytes`: in steps of 1024."""
    for unit, scale in (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if number >= scale:
            return f"{significant(number / scale, digits)} {unit}"
    return count(round(number), "byte")


def short_size(number: float | None) -> str:
    """`512K`, `2.1G`: in steps of 1024, as in top and free; empty if unknown."""
    if number is None:
        return ""
    for unit, scale in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if number >= scale:
            return f"{number / scale:.1f}{unit}" if number < 10 * scale else f"{number / scale:.0f}{unit}"
    return f"{number:.0f}"


def rate_text(bytes_per_second: float) -> str:
    """`1.18 GB/s`, `4.7 MB/s`: in steps of 1000."""
    for scale, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_second >= scale:
            return f"{significant(bytes_per_second / scale)} {unit}"
    return f"{significant(bytes_per_second)} B/s"


def bit_rate_text(bits_per_second: float) -> str:
    """`10 Gbit/s`, `2.5 Gbit/s`, `100 Mbit/s`."""
    if bits_per_second >= 1e9:
        return f"{significant(bits_per_second / 1e9)} Gbit/s"
    return f"{significant(bits_per_second / 1e6)} Mbit/s"


def duration(seconds: float) -> str:
    """`42.1 us`, `3.2 ms`, `0.25 s`, `9.1 s`."""
    if seconds >= 0.1:
        return f"{significant(seconds)} s"
    return f"{significant(seconds * 1e3)} ms" if seconds >= 1e-3 else f"{significant(seconds * 1e6)} us"


def age(seconds: float) -> str:
    """`12s`, `5m`, `3h`, `2d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def clock(seconds: float) -> str:
    """`0:03:20`."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def tilde(path: Path) -> str:
    """A path with `~` for the home directory."""
    try:
        home = path.home()
        return str(path) if home == home.parent else f"~/{path.relative_to(home)}"
    except (ValueError, RuntimeError):  # it is elsewhere, or this user has no home directory
        return str(path)


def cut(text: str, width: int) -> str:
    """The text, truncated with an ellipsis if it does not fit."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"[: max(0, width)]


def printable(text: str) -> str:
    """The text with each nonprintable character, which could move the cursor, replaced by a space."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, whose line ends and tabs are kept."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else " " for letter in text)

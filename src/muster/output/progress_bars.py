"""Progress bars, lines that end with a carriage return: one line each on a terminal, elsewhere one in a while. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from unicodedata import east_asian_width

from muster.output.escapes import RESET, STYLE, visible

Key = tuple[str, int]
"""Whose bar it is: a label and a descriptor."""

INTERVAL = 10.0
"""Seconds between two lines of a progress bar where the output is not a terminal."""

_RANK = re.compile(r"(\d+)\]$")


def width_of(text: str) -> int:
    """The number of columns of a text without escape sequences."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def fitted(text: str, columns: int) -> str:
    """A bar cut to one line of a terminal: colors stay, other escape sequences and control characters do not."""
    parts: list[str] = []
    room = columns
    styles = [*STYLE.finditer(text), None]
    start = 0
    for style in styles:
        piece = visible(text[start : style.start() if style else len(text)])
        for letter in piece if room else "":
            wide = width_of(letter)
            if wide > room:
                room = 0
                break
            if letter.isprintable():
                parts.append(letter)
                room -= wide
        if style:
            parts.append(style.group())
            start = style.end()
    return "".join(parts) + (RESET if len(styles) > 1 else "")


def _place(key: Key) -> tuple[int, str]:
    """Sorts bars by rank, and the status of Muster below them."""
    rank = _RANK.search(key[0])
    return (int(rank[1]), key[0]) if rank else (1 << 62, key[0])


@dataclass
class BarLines:
    """Bars where the output is not a terminal: which of their states become lines."""

    waiting: dict[Key, str] = field(default_factory=dict[Key, str])
    """The state of each bar that has not been shown yet."""
    shown: dict[Key, tuple[float, str]] = field(default_factory=dict[Key, tuple[float, str]])
    """When each bar was last shown, and its state then."""

    def due(self, now: float) -> list[tuple[Key, str]]:
        """The states to show now, at most one per bar and interval."""
        keys = [key for key in self.waiting if now >= self._due(key)]
        states = [(key, self.waiting.pop(key)) for key in keys]
        self.shown.update({key: (now, text) for key, text in states})
        return states

    def next_due(self) -> float | None:
        """When the next state is to be shown."""
        return min(map(self._due, self.waiting), default=None)

    def ended_by(self, key: Key, text: str) -> bool:
        """Take in that a complete line replaces a bar; returns whether it only repeats what was shown last."""
        self.waiting.pop(key, None)
        when, last = self.shown.get(key, (0.0, ""))
        if last:
            self.shown[key] = (when, "")
        return bool(last) and last == text

    def _due(self, key: Key) -> float:
        return self.shown[key][0] + INTERVAL if key in self.shown else 0.0


@dataclass
class BarArea:
    """The last lines of a terminal, one per bar, redrawn in place; other lines scroll above."""

    bars: dict[Key, str] = field(default_factory=dict[Key, str])
    drawn: list[int] = field(default_factory=list[int])
    """Widths of the lines on the terminal."""

    def erase(self, columns: int) -> str:
        """Removes the area from the terminal and leaves the cursor where it began."""
        if not self.drawn:
            return ""
        # In a terminal that has become narrower, a line takes several rows.
        rows = sum(max(1, -(-width // columns)) for width in self.drawn) - 1
        self.drawn = []
        return "\r" + (f"\x1b[{rows}A" if rows else "") + ("\x1b[J" if rows else "\x1b[K")

    def draw(self, columns: int, rows: int) -> str:
        """Draws all bars, as many as leave half of the terminal for other lines."""
        texts = [self.bars[key] for key in sorted(self.bars, key=_place)]
        most = max(1, rows // 2)
        if len(texts) > most:
            texts = [*texts[: most - 1], f"… and {len(texts) - most + 1} more progress bars"]
        lines = [fitted(text, max(1, columns - 1)) for text in texts]
        self.drawn = [width_of(visible(line)) for line in lines]
        return "\n".join(lines)

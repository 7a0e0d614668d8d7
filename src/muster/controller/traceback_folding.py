"""Folds tracebacks that only repeat another failure to one line on the screen; log files keep them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from muster.controller.diagnosis.rank_end import RankEnd
from muster.output.escapes import visible
from muster.output.lines import Line
from muster.shared.user_code import is_musters

_COLLECTIVE = re.compile(r"torch[/.](?:distributed|autograd)|gloo|nccl", re.IGNORECASE)
"""In tracebacks of collectives: only there does a broken connection lead to another rank, not to some server."""

_EXTRA_LINES = 50
"""Lines by which a printed traceback may be longer than the reported one."""

_FRAME = re.compile(r'File "(.*?)"')

_FIRST = "Traceback (most recent call last):"


def reason_to_fold(end: RankEnd, shown: dict[int, int]) -> str:
    """Why the traceback of a failed rank needs no space on the screen; empty if it does.

    `shown` maps hashes of tracebacks to the first rank that had them, and is updated.
    """
    if not end.traceback:
        return ""
    if end.is_echo and _COLLECTIVE.search(end.traceback):
        return f"rank {end.rank} on {end.host} lost its connection to another rank"
    before = shown.setdefault(hash(end.traceback), end.rank)
    same = f"rank {end.rank} on {end.host} printed the same traceback as rank {before}"
    return same if before != end.rank else ""


class TracebackFolder:
    """Finds the expected traceback in the stderr of one rank and replaces it by a note."""

    def __init__(self) -> None:
        self._expected: list[str] = []
        self._note = ""
        self._held: list[Line] = []
        self._last = 0
        """How often the last line of the traceback has still to come: chained exceptions may repeat it."""

    def expect(self, traceback: str, note: str) -> None:
        """Replace the next occurrence of a traceback by a note."""
        self._expected = traceback.splitlines()
        self._note = note
        self._last = self._expected.count(self._expected[-1])

    def pass_on(self, lines: Sequence[Line]) -> Iterator[Line | str]:
        """The lines to show, and the note (a string) where the traceback was."""
        for line in lines:
            if not self._expected:
                yield line
                continue
            text = visible(line.text)  # Python 3.13 colors tracebacks under FORCE_COLOR
            if not self._is_part(text, line.end):
                yield from self.give_up()
                yield line
                continue
            self._held.append(line)
            self._last -= text == self._expected[-1]
            if self._last == 0:
                self._held.clear()
                self._expected.clear()
                yield self._note

    def give_up(self) -> list[Line]:
        """The lines held back so far: what looked like the traceback was something else, or the rank has ended."""
        held, self._held = self._held, []
        if held:
            self._expected.clear()
        return held

    def _is_part(self, text: str, end: str) -> bool:
        if not self._held:
            return text in (self._expected[0], _FIRST) and end == "\n"
        is_inside = not text[:1].strip() or text in self._expected  # frames and source lines are indented
        return is_inside and len(self._held) < len(self._expected) + _EXTRA_LINES


def is_below_script(line: str) -> bool:
    """Whether a line of a faulthandler stack trace belongs to the code that called the user's script."""
    frame = _FRAME.search(line)
    return line.startswith("Extension modules: ") or bool(frame and (frame[1] == "<string>" or is_musters(frame[1])))

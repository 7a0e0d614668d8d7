"""A terminal as a grid of characters: what a person sees after the escape sequences that Muster uses."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")


def seen(output: str, columns: int = 80) -> list[str]:
    """The lines that a terminal of this width shows after the output, without a limit to their number."""
    rows: list[list[str]] = [[]]
    row = column = 0
    position = 0
    while position < len(output):
        sequence = _SEQUENCE.match(output, position)
        if sequence is not None:
            position = sequence.end()
            if sequence[2] == "A":
                row = max(0, row - int(sequence[1] or 1))
            elif sequence[2] in "JK":
                del rows[row][column:]
                if sequence[2] == "J":
                    del rows[row + 1 :]
            else:
                assert sequence[2] == "m", repr(sequence.group())
            continue
        letter = output[position]
        position += 1
        if letter == "\r":
            column = 0
            continue
        if letter == "\n" or column == columns:
            row, column = row + 1, 0  # the tests' terminals do not need a carriage return before a newline
            rows += [[] for _ in range(row + 1 - len(rows))]
        if letter != "\n":
            rows[row][column : column + 1] = [letter]
            column += 1
    lines = ["".join(letters).rstrip() for letters in rows]
    while lines and not lines[-1]:
        lines.pop()
    return lines

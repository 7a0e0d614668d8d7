"""The console blocks of the documentation: commands, their expected output, and comparison with the real output.

A block is the text between ```console and ```. A line `$ command` is run, and the lines below it are its expected
output. Without such lines, the command is run and its output is not compared. `h2$ command` is run on host h2. Comments
before a block configure it:

    <!-- console: lab -->        for all blocks below: where they run (tests/lab/test_documents.py has the places)
    <!-- not run: needs GPUs --> the block is not run, and why
    <!-- exit 1 -->              the last command exits with this code, instead of 0
    <!-- first: mkdir data -->   a command to run before the block, which readers do not see
    <!-- numbers vary -->        numbers are not compared

A code block with a title (```python title="train.py") is a file; ```diff title="train.py -> ddp.py" creates one from
another file of the page, which the diff must show completely. In expected output, `...` matches anything within a line,
or any lines if it is alone on its line. Times, ports, job names and directories are never compared; of consecutive
lines of ranks, only the order within a rank is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FENCE = re.compile(r"^```(\w+)?(.*)$")
COMMENT = re.compile(r"^<!-- (console|not run|exit|first|numbers):? (.+?) -->$")
PROMPT = re.compile(r"^([a-z]+[\w-]*)?\$ (.*)$")


@dataclass(kw_only=True)
class Command:
    """A command and its expected output."""

    text: str
    host: str = ""
    """The host in the prompt, if any."""
    printed: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, kw_only=True)
class Block:
    """A console block."""

    line: int
    place: str
    """A name of tests/lab/test_documents.py; empty if the page does not set it."""
    reason: str
    """Why the block is not run; empty if it is."""
    exit_code: int
    first: tuple[str, ...]
    any_numbers: bool
    commands: tuple[Command, ...]


@dataclass(frozen=True, kw_only=True)
class CodeFile:
    """A code block with a title."""

    line: int
    name: str
    text: str
    is_diff: bool


def read_page(text: str) -> list[Block | CodeFile]:
    """The console blocks and files of a page, in order."""
    found: list[Block | CodeFile] = []
    place, steering = "", dict[str, list[str]]()
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        comment, fence = COMMENT.match(line), FENCE.match(line)
        if comment and comment.group(1) == "console":
            place = comment.group(2)
        elif comment:
            steering.setdefault(comment.group(1), []).append(comment.group(2))
        elif fence:
            body = _body(lines)
            title = re.search(r'title="([^"]+)"', fence.group(2) or "")
            if fence.group(1) == "console":
                found.append(_block(number, place, steering, body))
            elif title:
                code = "\n".join(body) + "\n"
                found.append(CodeFile(line=number, name=title.group(1), text=code, is_diff=fence.group(1) == "diff"))
            steering = {}
    return found


def _body(lines: Iterator[tuple[int, str]]) -> list[str]:
    body: list[str] = []
    for _, line in lines:
        if line.startswith("```"):
            return body
        body.append(line)
    raise ValueError("unterminated code block")


def _block(number: int, place: str, steering: dict[str, list[str]], body: Sequence[str]) -> Block:
    try:
        commands = commands_of(body)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None
    return Block(
        line=number,
        place=place,
        reason=" ".join(steering.get("not run", [])),
        exit_code=int(steering.get("exit", ["0"])[0]),
        first=tuple(steering.get("first", [])),
        any_numbers="numbers" in steering,
        commands=tuple(commands),
    )


def commands_of(body: Sequence[str]) -> list[Command]:
    """The commands of a console block, each with the lines below it; ValueError if it does not begin with one."""
    commands: list[Command] = []
    for line in body:
        prompt = PROMPT.match(line)
        if commands and not commands[-1].printed and commands[-1].text.endswith("\\"):
            commands[-1].text += "\n" + line
        elif prompt:
            commands.append(Command(text=prompt.group(2), host=prompt.group(1) or ""))
        elif commands:
            commands[-1].printed.append(line)
        else:
            raise ValueError("a console block begins with `$ command`")
    return commands


def apply_diff(diff: str, old: str) -> str:
    """Apply a diff that shows all of the old file; raise a ValueError if it does not."""
    lines = [line or " " for line in diff.splitlines()]
    before = [line[1:] for line in lines if line[0] in " -"]
    if before != old.splitlines():
        pairs = zip(before, old.splitlines(), strict=False)
        odd = next((f"{a!r} is {b!r} in the file" for a, b in pairs if a != b), "their lengths differ")
        raise ValueError(f"the diff does not match the old file: {odd}")
    return "\n".join(line[1:] for line in lines if line[0] in " +") + "\n"


PASSING = re.compile(
    r"muster: (importing |sending |connecting to |warning: |\d+ of \d+ hosts up|\S+ has no GPU, starting one rank)"
)
"""Optional messages of Muster, which depend on the load and on warnings about the machine."""

HELD_UP = re.compile(
    r"muster: (\S+ has been silent for |\S+ is back$|ranks? .* exited with exit code 0 more than |"
    r"ranks? .* finished (its|their) script \d+ s ago but |"
    r"(straggler at \S+: )?(ranks?|the network) .* (is|are) (no longer )?slowing the job down|"
    r"`muster show \S+` prints more$)"  # below a straggler in the logs
    r"|\[\S+\] plm:rsh: Warning: setpgid\("  # of mpirun, if its child was faster
)
"""Messages about delays, which a busy machine may cause; ignored unless the page shows them."""

VARYING = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\S*/muster/jobs/\S+"), "JOB"),
    (re.compile(r"\d{8}-\d{6}-[\w.-]+-[0-9a-f]{4}"), "JOB"),
    (re.compile(r"\b\d+(\.\d+)? (s|ms)\b"), "TIME"),
    (re.compile(r"\b\d+[smhd]\b *"), "AGE "),  # in a table, fewer spaces follow a longer one
    (re.compile(r", first collective TIME"), ""),  # a very short run may end before it is measured
    (re.compile(r"\b(\d+\.\d+\.\d+\.\d+|h\d+|localhost):\d{4,5}\b"), r"\1:PORT"),
    (re.compile(r"\b([Aa]llocation|job) \d+"), r"\1 N"),
    (re.compile(r"\s+$"), ""),
)
RANK_LINE = re.compile(r"\[(\S+) +(\d+)\] ")
CARETS = re.compile(r"(\[\S+ +\d+\] )?(\[rank\d+\]: )?\s*[~^]+")
"""The markers that newer versions of Python print below a line of a traceback."""


def differences(printed: Sequence[str], shown: Sequence[str], *, any_numbers: bool = False) -> str:
    """Describe how the output of a command differs from the expected lines; empty if it does not."""
    expected = _ordered(shown)
    real = _ordered(printed, expected)
    if any_numbers:
        real, expected = [_without_numbers(line) for line in real], [_without_numbers(line) for line in expected]
    at = _first_unmatched(real, expected)
    if at is None:
        return ""
    wanted = "\n".join(f"  {'>' if number == at else ' '} {line}" for number, line in enumerate(expected))
    return f"the document shows (> marks the first line not found):\n{wanted}\nbut the command printed:\n" + "\n".join(
        f"    {line}" for line in real
    )


def _ordered(lines: Sequence[str], expected: Sequence[str] | None = None) -> list[str]:
    """Lines without variable or optional parts; consecutive lines of ranks are sorted by rank."""
    out: list[str] = []
    ranks: list[tuple[int, str]] = []

    def in_order() -> list[str]:
        return [line for _, line in sorted(ranks, key=lambda one: one[0])]

    for line in lines:
        for pattern, word in VARYING:
            line = pattern.sub(word, line)
        if PASSING.match(line) or CARETS.fullmatch(line) or not line:
            continue
        if expected is not None and line not in expected and HELD_UP.match(line):
            continue
        rank = RANK_LINE.match(line)
        if rank:
            ranks.append((int(rank.group(2)), line))
        else:
            out += [*in_order(), line]
            ranks.clear()
    return out + in_order()


def _without_numbers(line: str) -> str:
    """The line with N for each number, and without units and padding, which depend on its size."""
    label = RANK_LINE.match(line)
    head, rest = (label.group(), line[label.end() :]) if label else ("", line)
    rest = re.sub(r"(?<![\w.])\d+(?:[.,:]\d+)*(?:e[-+]\d+)?(?!\w)", "N", rest)
    return head + re.sub(r"\s+", " ", re.sub(r"\b[kMG]?B/s", "B/s", rest))


def _first_unmatched(real: Sequence[str], expected: Sequence[str]) -> int | None:
    """The index of the first expected line that does not match, or None if all match."""
    reach = {0}  # numbers of real lines that the expected lines so far may match
    for number, line in enumerate(expected):
        if line.strip() in ("...", "…"):
            reach = set(range(min(reach), len(real) + 1))
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in re.split(r"\.\.\.|…", line)))
        reach = {at + 1 for at in reach if at < len(real) and pattern.fullmatch(real[at])}
        if not reach:
            return number
    return None if len(real) in reach else len(expected)


def pages(root: Path) -> list[Path]:
    """The pages whose console blocks are checked."""
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]

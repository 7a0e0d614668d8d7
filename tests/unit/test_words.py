"""Words that Muster does not use in messages, help, docstrings and documentation, with what to write instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

COVERED = (
    "src/muster",
    "docs",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks",
    "tools",
)
"""Files and directories that are checked, relative to the root of the repository."""

SUFFIXES = {".html", ".js", ".md", ".py"}

STEMS = (
    "author|categor|custom|emphas|final|general|global|initial|local|maxim|minim|normal|optim|organ|parallel|prior|real|"
    "recogn|serial|special|standard|summar|synchron|token|util|vector|visual"
)
"""Stems of verbs in -ize that British spelling may write with -ise."""

ISE = rf"({STEMS})is(e|es|ed|er|ing|ations?)"

REPLACED = {
    r"mend(s|ed|ing)?": "fix",
    r"tell|tells|told": "report, detect, log, print",
    r"(go|goes|going|went|gone) on(?! the)": "continue, keep running",
    r"anew": "again",
    r"for want of": "because of",
    r"shall": "should",
    r"for ever": "forever",
    r"made-up": "synthetic",
    r"(?<!there )is none": "invalid, must be",
    r"a bug of Muster": "internal error in Muster",
    r"Python's lock": "the GIL",
    r"it had gone": "it lost its connection",
    r"you would see": "Symptom:",
    r"without a word": "silently",
    r"in vain": "timed out",
    r"plug-ins?": "plugin",
    r"look-ups?": "lookup",
    r"time-outs?": "timeout",
    r"(behavi|col|fav|flav|harb|hon|neighb)our\w*": "American spelling: -or",
    rf"\w*{ISE}": "American spelling: -ize",
    r"(analyse|catalogue|centre|licence|grey)[ds]?": "American spelling",
    r"learnt|spelt|whilst|amongst": "learned, spelled, while, among",
}
"""Regular expressions of whole words, and what to write instead."""

ALLOWED = {
    "src/muster/recipes/tacotron2/corpus.py": {"mended", "neighbour", "harbour"},
}
"""Replaced words that a file needs, such as the vocabulary of a corpus or a quotation."""

PATTERNS = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): instead for words, instead in REPLACED.items()}
USUAL = re.compile(rf"\b(?:{'|'.join(words for words in REPLACED if ISE not in words)})\b", re.IGNORECASE)
BRITISH = re.compile(rf"{ISE}\b", re.IGNORECASE)
"""Whether any pattern may match: most texts have none of these words, and two searches are fast."""


def files(places: tuple[str, ...] = COVERED) -> Iterator[Path]:
    for place in places:
        path = ROOT / place
        assert path.exists(), f"{place} in COVERED does not exist"
        found = [path] if path.is_file() else path.rglob("*")
        yield from sorted(file for file in found if file.suffix in SUFFIXES and file.is_file())


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """The texts that people read, with their line: strings with a space in Python and JavaScript, else all lines."""
    content = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield node.lineno, node.value
    elif file.suffix == ".js":
        for number, line in enumerate(content.splitlines(), 1):
            strings = re.findall(r"\"[^\"]*\"|'[^']*'|`[^`]*`|//.*", line)
            yield from ((number, string) for string in strings if " " in string)
    else:
        yield from enumerate(content.splitlines(), 1)


def replaced_words(text: str) -> Iterator[tuple[str, str]]:
    for pattern, instead in PATTERNS.items() if USUAL.search(text) or BRITISH.search(text) else ():
        for match in pattern.finditer(text):
            if match[0] != "is None":
                yield match[0], instead


def violations(file: Path) -> list[str]:
    name = file.relative_to(ROOT).as_posix()
    allowed = ALLOWED.get(name, set[str]())
    return [
        f"{name}:{line}: {word!r}, write: {instead}"
        for line, text in texts(file)
        for word, instead in replaced_words(text)
        if word.lower() not in allowed
    ]


def test_messages_help_and_docs_use_plain_words():
    found = [violation for file in files() for violation in violations(file)]
    assert not found, "\n".join(found)


def test_every_allowed_word_is_still_needed():
    for name, words in ALLOWED.items():
        text = (ROOT / name).read_text(encoding="utf-8").lower()
        assert [word for word in sorted(words) if word not in text] == [], name


@pytest.mark.parametrize(
    "text",
    [
        "to mend it: reboot",
        "the job goes on",
        "it is told twice",
        "made-up data",
        "a colour",
        "recognised",
        "-5 is none",
    ],
)
def test_a_replaced_word_is_found(text: str):
    assert list(replaced_words(text))


@pytest.mark.parametrize("text", ["raise it", "noise", "otherwise", "if it is None", "going on the command line"])
def test_plain_english_is_not_reported(text: str):
    assert list(replaced_words(text)) == []

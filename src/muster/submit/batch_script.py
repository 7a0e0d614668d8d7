"""The text of a batch script: directives, the environment, and one `muster run`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from muster.submit.request import Request
from muster.submit.scheduler import Scheduler

_WIDTH = 100
_AWKWARD = re.compile(r"[\x00-\x1f\x7f']")
_ESCAPED = re.compile(r"[\x00-\x1f\x7f'\\]")
_ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\\": r"\\", "'": r"\'"}


def write_script(request: Request, scheduler: Scheduler) -> str:
    """The whole script.

    Failing steps end it by `|| exit` rather than by `set -e` or `-u`: the scripts behind `module` and `conda activate`
    are not written for those (conda#3200, conda#9966, anaconda-issues#8838), and within `||` bash leaves them alone.
    """
    paragraphs = [
        ["#!/bin/bash -l" if request.modules else "#!/bin/bash"]
        + [f"{scheduler.mark} {directive}" for directive in scheduler.directives(request)],
        [f"# Written by: {join(('muster', 'submit', *request.typed))}"],
        _modules(request.modules),
        [f"# {request.activation.comment}"] + ([f"{request.activation.line} || exit"] * bool(request.activation.line)),
        [f"cd {quote(request.folder)} || exit"],
        [
            f"# exec: the signals of {scheduler.title} reach Muster itself, which ends the ranks in order.",
            _body((*request.activation.muster, "run"), request.run),
        ],
    ]
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n"


def _modules(modules: Sequence[str]) -> list[str]:
    """`module` is a shell function: a user's zsh or csh does not hand it to a job."""
    loads = [f"module load {quote(module)} || exit" for module in modules]
    return ["# The -l above makes this a login shell: those know `module`.", *loads] if loads else []


def _body(muster: Sequence[str], arguments: Sequence[str]) -> str:
    line = f"exec {join((*muster, *arguments))}"
    if len(line) <= _WIDTH:
        return line
    rows = [f"exec {join(muster)}"]
    for word in map(quote, arguments):
        # An option and its value stay together where they fit.
        if len(rows) > 1 and not word.startswith("-") and len(rows[-1]) + len(word) < _WIDTH:
            rows[-1] += f" {word}"
        else:
            rows.append(f"    {word}")
    return " \\\n".join(rows)


def join(words: Sequence[str]) -> str:
    """Words as a line of bash."""
    return " ".join(map(quote, words))


def quote(word: str) -> str:
    r"""A word as bash reads it back, on one line: $'a\nb' with a line break in it, $'it\'s' with a quote.

    A scheduler may refuse a script that has a carriage return before a line break anywhere.
    """
    if not _AWKWARD.search(word):
        return shlex.quote(word)
    escaped = _ESCAPED.sub(lambda found: _ESCAPES.get(found[0], f"\\x{ord(found[0]):02x}"), word)
    return f"$'{escaped}'"

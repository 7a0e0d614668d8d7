"""The text of a batch script: directives, the environment, and one `muster run`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from muster.submit.request import Request
from muster.submit.scheduler import Scheduler

_WIDTH = 100
_AWKWARD = re.compile(r"[\x00-\x1f\x7f']")
_ESCAPED = re.compile(r"[\x00-\x1f\x7f'\\]")
_ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\\": r"\\", "'": r"\'"}


def write_script(request: Request, scheduler: Scheduler) -> str:
    """Return the whole script.

    Steps that fail end it with `|| exit` instead of `set -e` or `-u`: the scripts behind `module` and `conda activate`
    do not support those (conda#3200, conda#9966, anaconda-issues#8838), and bash ignores `set -e` within `||`.
    """
    paragraphs = [
        ["#!/bin/bash -l" if request.modules else "#!/bin/bash"]
        + [f"{scheduler.mark} {directive}" for directive in scheduler.directives(request)],
        [f"# Written by: {join(('muster', 'submit', *request.typed))}"],
        _modules(request.modules),
        _exports(request, scheduler),
        _secrets(request.secrets),
        [f"# {request.activation.comment}"] + ([f"{request.activation.line} || exit"] * bool(request.activation.line)),
        [f"cd {quote(request.folder)} || exit"],
        [
            f"# exec: signals from {scheduler.title} reach Muster itself, which stops the ranks in order.",
            _body((*request.activation.muster, "run"), request.run),
        ],
    ]
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n"


def _exports(request: Request, scheduler: Scheduler) -> list[str]:
    """Return the lines with the settings that `muster run` needs to requeue the job or to warn its ranks."""
    found = " ".join(f"{name}={value}" for name, value in scheduler.exports(request).items())
    why = "The job continues as the same Muster job when it is requeued." if request.requeue else "For --signal."
    return [f"# {why}", f"export {found}"] if found else []


def _secrets(secrets: Mapping[str, str]) -> list[str]:
    """Return the lines that set secrets for the ranks: everybody can see a command line, nobody else this script."""
    lines = [f"export {name}={quote(value)}" for name, value in secrets.items()]
    return ["# Values of --env that look like secrets, so that `ps` does not show them.", *lines] if lines else []


def _modules(modules: Sequence[str]) -> list[str]:
    """Return the lines that load modules; `module` is a shell function, which zsh and csh do not export to a job."""
    loads = [f"module load {quote(module)} || exit" for module in modules]
    return ["# The -l above makes this a login shell, which defines `module`.", *loads] if loads else []


def _body(muster: Sequence[str], arguments: Sequence[str]) -> str:
    line = f"exec {join((*muster, *arguments))}"
    if len(line) <= _WIDTH:
        return line
    rows = [f"exec {join(muster)}"]
    for word in map(quote, arguments):
        # Keep an option and its value on one line if they fit.
        if len(rows) > 1 and not word.startswith("-") and len(rows[-1]) + len(word) < _WIDTH:
            rows[-1] += f" {word}"
        else:
            rows.append(f"    {word}")
    return " \\\n".join(rows)


def join(words: Sequence[str]) -> str:
    """Join words into a line of bash."""
    return " ".join(map(quote, words))


def quote(word: str) -> str:
    r"""Quote a word for bash on one line: $'a\nb' with a line break in it, $'it\'s' with a quote.

    A scheduler may reject a script that contains a carriage return before a line break.
    """
    if not _AWKWARD.search(word):
        return shlex.quote(word)
    escaped = _ESCAPED.sub(lambda found: _ESCAPES.get(found[0], f"\\x{ord(found[0]):02x}"), word)
    return f"$'{escaped}'"

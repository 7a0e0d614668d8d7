"""What the user requests from a scheduler, in terms common to all schedulers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from muster.environment import SECRET_NAME
from muster.errors import UsageError
from muster.submit.batch_units import Memory

_WORD = re.compile(r"[A-Za-z0-9_.,:@%/+=-]+")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, kw_only=True)
class Activation:
    """How a job activates the Python environment in which Muster is installed."""

    comment: str
    """Which environment it is and why: a comment in the script."""
    line: str = ""
    """The shell command that activates it; empty if the path of the interpreter suffices."""
    muster: tuple[str, ...] = ("muster",)
    """The command that then starts Muster."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One `muster submit`. Fields that the user did not set are None and get no directive."""

    typed: tuple[str, ...]
    """The command line, for the comment about the script's origin."""
    run: tuple[str, ...]
    """What follows `muster run` in the script."""
    name: str
    folder: str
    activation: Activation
    nodes: int | None = None
    gpus_per_node: int | None = None
    memory: Memory | None = None
    """Of each node."""
    seconds: int | None = None
    queue: str | None = None
    account: str | None = None
    modules: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Directives as the user wrote them, without `#SBATCH` or `#PBS`."""
    nproc: int | None = None
    """Ranks per host, if given with --nproc."""
    variables: tuple[str, ...] = ()
    """Environment variables whose values here are passed to the ranks (`--env NAME`)."""
    secrets: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables of `--env NAME=VALUE` that the script exports, because other users see command lines."""
    requeue: int | None = None
    """How often the job continues after its time limit or a preemption; None for never."""
    warning: int | None = None
    """Seconds before the time limit at which the ranks get SIGUSR1."""
    outlives_nodes: bool = False
    """Whether the job keeps running when a node fails, because Muster replaces it or continues without it."""

    def extra_words(self) -> list[str]:
        """Return all words of the `--extra` lines."""
        return [word for line in self.extra for word in shlex.split(line)]

    def extra_sets(self, *options: str) -> bool:
        """Return whether an `--extra` line has one of these options, in any notation."""
        return self.extra_value(*options) is not None

    def extra_value(self, *options: str) -> str | None:
        """Return the value of the last of these options in the `--extra` lines; empty for an option without one."""
        words = self.extra_words()
        values = [
            value
            for word, following in zip_longest(words, words[1:], fillvalue="")
            for option in options
            if (value := _value(word, following, option)) is not None
        ]
        return values[-1] if values else None


def _value(word: str, following: str, option: str) -> str | None:
    """`x` for `-N x`, `-Nx`, `--name x` and `--name=x`; None if the word is not this option."""
    if word == option:
        return following
    start = f"{option}=" if option.startswith("--") else option
    return word[len(start) :] if word.startswith(start) else None


def without_secrets(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return options of `muster run` with `--env NAME` for each secret `--env NAME=VALUE`, and these secrets."""
    kept: list[str] = []
    secrets: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        is_secret = kept[-1:] == ["--env"] and equals and SECRET_NAME.search(name)
        kept.append(name if is_secret else word)
        secrets |= {name: value} if is_secret else {}
    return tuple(kept), secrets


def check_name(text: str) -> str:
    """Return a job's name; UsageError if it cannot be part of a file name."""
    if not _NAME.fullmatch(text):
        raise UsageError(
            f"--name {text!r}: invalid job name",
            hint="use letters, digits and . _ + -, for example --name big-run",
        )
    return text


def check_word(option: str, text: str) -> str:
    """Return a value that needs no quotes in a directive; UsageError for one with spaces, quotes or the like."""
    if not _WORD.fullmatch(text):
        raise UsageError(
            f"{option} {text!r}: not allowed in a directive",
            hint="use letters, digits and . _ - , : @ % / + =, without spaces or quotes",
        )
    return text


def check_extra(mark: str, text: str) -> str:
    """Return one `--extra` line without `#SBATCH` or `#PBS`, if the user copied that too."""
    line = text.strip()
    line = line[len(mark) :].strip() if line.startswith(mark) else line
    try:
        one_line = line.isprintable() and line.startswith("-") and bool(shlex.split(line))
    except ValueError:
        one_line = False  # an open quote
    if not one_line:
        raise UsageError(
            f"--extra {text!r}: must be one line of scheduler options",
            hint=f"write what follows `{mark} `, for example --extra '--exclusive' or --extra '-P ab12'",
        )
    return line


def job_name(target: str, *, module: bool) -> str:
    """Return a name for the job of a script or module: `train` for `src/train.py` and for `-m pkg.train`."""
    stem = target.rpartition(".")[2] if module else target.rpartition("/")[2].removesuffix(".py")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.")[:100]
    return name if name[:1].isalpha() else f"job-{name}".rstrip("-")

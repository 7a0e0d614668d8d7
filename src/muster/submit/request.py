"""What the user asked a scheduler for, in terms that are the same for every scheduler."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from muster.errors import UsageError
from muster.submit.batch_units import Memory

_WORD = re.compile(r"[A-Za-z0-9_.,:@%/+=-]+")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, kw_only=True)
class Activation:
    """How a job gets the Python in which Muster is installed."""

    comment: str
    """Which Python that is and why: a line of the script."""
    line: str = ""
    """What a shell runs to have it; empty where its path says everything."""
    muster: tuple[str, ...] = ("muster",)
    """How Muster is called then."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One `muster submit`. What the user did not say is None, and no directive is written for it."""

    typed: tuple[str, ...]
    """The command line, for the comment that tells where the script is from."""
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
    """Directives as the user wrote them, without the mark of a directive."""
    nproc: int | None = None
    """Ranks per host, where the options of `muster run` say it."""
    variables: tuple[str, ...] = ()
    """Variables that the ranks get as they are here (`--env NAME`)."""

    def extra_words(self) -> list[str]:
        """All words of the `--extra` lines."""
        return [word for line in self.extra for word in shlex.split(line)]

    def extra_sets(self, *options: str) -> bool:
        """Whether an `--extra` line has one of these options, in any way it may be written."""
        return any(
            word == option or word.startswith(f"{option}=" if option.startswith("--") else option)
            for word in self.extra_words()
            for option in options
        )


def check_name(text: str) -> str:
    """A job's name that can be part of a file name."""
    if not _NAME.fullmatch(text):
        raise UsageError(
            f"--name {text!r} cannot be the name of a job",
            hint="use letters, digits and . _ + -, for example --name big-run",
        )
    return text


def check_word(option: str, text: str) -> str:
    """A value that a directive can hold as it is; UsageError for one with blanks, quotes or the like."""
    if not _WORD.fullmatch(text):
        raise UsageError(
            f"{option} {text!r} cannot stand in a directive",
            hint="letters, digits and . _ - , : @ % / + = are fine; blanks and quotes are not",
        )
    return text


def check_extra(mark: str, text: str) -> str:
    """One `--extra` line, without the mark of a directive where the user copied it with it."""
    line = text.strip()
    line = line[len(mark) :].strip() if line.startswith(mark) else line
    try:
        one_line = line.isprintable() and line.startswith("-") and bool(shlex.split(line))
    except ValueError:
        one_line = False  # a quote that does not end
    if not one_line:
        raise UsageError(
            f"--extra {text!r} is not one line with options of the scheduler",
            hint=f"write what would follow `{mark} `, for example --extra '--exclusive' or --extra '-P ab12'",
        )
    return line


def job_name(target: str, *, module: bool) -> str:
    """A name for the job that runs this script or module: `train` for `src/train.py` and for `-m pkg.train`."""
    stem = target.rpartition(".")[2] if module else target.rpartition("/")[2].removesuffix(".py")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.")[:100]
    return name if name[:1].isalpha() else f"job-{name}".rstrip("-")

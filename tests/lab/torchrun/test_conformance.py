"""Small programs do under Muster what they do under torchrun: the same results, output, files and exit codes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.conformance.launchers import Outcome, under_muster, under_torchrun
from benchmarks.conformance.programs import Program, load_all

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

PROGRAMS = load_all()


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A difference that is meant to be."""

    lines: str
    """A pattern that each line of the difference matches."""
    why: str
    always: bool = True
    """Whether it must show in every run."""


EXPLAINED: dict[str, Explained] = {}
"""The programs that differ for a reason. Whatever is not in here is a bug of Muster."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_as_under_torchrun(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    if program.missing:
        pytest.skip(f"{program.missing} is not installed")
    with ThreadPoolExecutor(2) as both:
        torchrun = None if program.only_muster else both.submit(under_torchrun, program, tmp_path)
        muster = both.submit(under_muster, program, tmp_path / "muster").result()
        found = list(differences(program, torchrun.result() if torchrun else None, muster))
    explained = EXPLAINED.get(name)
    rest = [line for line in found if not (explained and re.search(explained.lines, line))]
    assert not rest, "\n".join([*rest, "", "--- Muster printed", muster.said])
    assert not (explained and explained.always and not found), f"no longer differs: {explained.why}"


def test_every_explanation_is_for_a_program() -> None:
    assert set(EXPLAINED) <= set(PROGRAMS)


def differences(program: Program, torchrun: Outcome | None, muster: Outcome) -> Iterator[str]:
    """How Muster's outcome differs from torchrun's, a line each."""
    if torchrun is None or (program.fails_under_torchrun and torchrun.code):
        if muster.code != program.exit:
            yield f"exit code: {program.exit} expected, Muster {muster.code}"
        return
    if torchrun.code != muster.code and not program.signal:
        yield f"exit code: torchrun {torchrun.code}, Muster {muster.code}"
    if torchrun.first != muster.first and not program.signal:
        yield f"rank that failed first: torchrun {torchrun.first}, Muster {muster.first}"
    if muster.left and not torchrun.left:
        yield f"processes left by Muster: {muster.left}"
    yield from unequal(torchrun.files, muster.files)
    compared = [name for name in torchrun.streams if not (program.without_stderr and name.endswith("stderr"))]
    yield from unequal({name: torchrun.streams[name] for name in compared}, muster.streams, only_first=True)


def unequal(torchrun: dict[str, list[str]], muster: dict[str, list[str]], *, only_first: bool = False) -> Iterator[str]:
    """The lines that differ between files or streams of the same name."""
    for name in sorted(torchrun if only_first else torchrun.keys() | muster.keys()):
        if name not in muster or name not in torchrun:
            yield f"{name}: only under {'torchrun' if name in torchrun else 'Muster'}"
            continue
        for line in list(difflib.unified_diff(torchrun[name], muster[name], n=0))[2:]:
            if line[0] in "-+":
                yield f"{name}: {'torchrun' if line[0] == '-' else 'Muster'}: {line[1:200]}"

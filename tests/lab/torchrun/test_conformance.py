"""Small programs do under Muster what they do under torchrun: the same results, output, files and exit codes.

`benchmarks/conformance/programs.py` describes the options in a program's header, `explained.py` has the table of
differences that are meant to be.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from benchmarks.conformance.compare import unexplained
from benchmarks.conformance.explained import EXPLAINED
from benchmarks.conformance.launchers import under_muster, under_torchrun
from benchmarks.conformance.programs import load_all

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

PROGRAMS = load_all()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_as_under_torchrun(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    if program.missing:
        pytest.skip(f"{program.missing} is not installed")
    if program.slow and "CONFORMANCE_SLOW" not in os.environ:
        pytest.skip(program.slow)
    with ThreadPoolExecutor(2) as both:
        torchrun = None if program.only_muster else both.submit(under_torchrun, program, tmp_path)
        muster = both.submit(under_muster, program, tmp_path / "muster").result()
        found = unexplained(program, torchrun.result() if torchrun else None, muster)
    assert not found, "\n".join([*found, "--- Muster printed", muster.said])


def test_every_explanation_is_for_a_program() -> None:
    assert set(EXPLAINED) <= set(PROGRAMS)

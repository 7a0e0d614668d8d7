"""Small programs do under Muster what they do under torchrun: the same results, output, files and exit codes.

`benchmarks/conformance/programs.py` describes the options in a program's header, `explained.py` has the table of
differences that are meant to be.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import launching
import pytest
from benchmarks.conformance import launchers
from benchmarks.conformance.compare import unexplained
from benchmarks.conformance.explained import EXPLAINED
from benchmarks.conformance.launchers import Kept, Outcome, under_muster, under_torchrun
from benchmarks.conformance.programs import Program, load_all
from benchmarks.conformance.recorded import FOLDER, is_stale, recorded

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

PROGRAMS = load_all()

FRESH = {
    "end_del_of_globals",  # when the garbage collector runs, which is another moment under a zygote that was kept
    # What a rank inherits from the launcher; a kept agent inherits it from an earlier command.
    "environment_of_ranks",
    "signals_dispositions",
    "start_file_descriptors",
    "start_flags",
    "start_limits",
    "start_path",
    "start_session",
    # Variables for which Muster forks no zygote, and would end a kept one.
    "environment_before_torch_compile",
    "environment_before_torch_dynamo",
    "environment_before_torch_inductor",
    "environment_before_torch_jit",
    "environment_before_torch_logs",
    # A program of each kind that looks at what a fork finds in its interpreter; the others share a zygote.
    "environment_before_torch_threads",
    "start_hooks",
    "start_process_title",  # and a kept zygote has more room for it
    "torch_state",
    # Ordinary programs, so that these start as most jobs of a user do.
    "end_exit_3",
    "failure_exception",
    "files_plain",
}
"""Programs with a zygote of their own, because they could see the difference, or for the reason given."""


def is_fresh(program: Program) -> bool:
    """Whether a program gets a zygote of its own, as each with an environment of its own."""
    return bool(program.env or program.name in FRESH)


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """A zygote for the programs of a worker that need no other."""
    host = Kept(tmp_path_factory.mktemp("kept"))
    yield host
    host.end()
    assert not host.processes()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_as_under_torchrun(
    name: str, tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PROGRAMS[name]
    if program.missing:
        pytest.skip(f"{program.missing} is not installed")
    if program.slow and "CONFORMANCE_SLOW" not in os.environ:
        pytest.skip(program.slow)
    # The ranks of the others are forked on the kept host, whatever starts the controller.
    if not (is_fresh(program) or program.signal or "MUSTER_UNDER_TEST" in os.environ):
        monkeypatch.setattr(launchers, "MUSTER", launching.program())
    muster = under_muster(program, tmp_path / "muster", kept=None if is_fresh(program) else kept)
    found = differences_from_torchrun(program, muster, tmp_path)
    assert not found, "\n".join([*found, "--- Muster printed", muster.said])


def differences_from_torchrun(program: Program, muster: Outcome, folder: Path) -> list[str]:
    """Differences from what torchrun did when it was recorded or, if there are any, from what it does here."""
    if program.only_muster:
        return unexplained(program, None, muster)
    before = None if "CONFORMANCE_LIVE" in os.environ else recorded(program)
    if before is not None and not unexplained(program, before, muster):
        return []
    if before is not None:
        warnings.warn(f"the record of {program.name} does not fit this machine; torchrun runs it again", stacklevel=1)
    return unexplained(program, under_torchrun(program, folder), muster)


def test_each_record_is_of_a_program_as_it_is_now() -> None:
    records = list(FOLDER.glob("*.json"))
    assert len(records) > 100
    for path in records:
        assert path.stem in PROGRAMS, f"git rm {path}"
        assert not is_stale(path, PROGRAMS[path.stem]), f"type: python -m benchmarks.conformance --record {path.stem}"


def test_every_explanation_is_for_a_program() -> None:
    assert set(EXPLAINED) <= set(PROGRAMS)


def test_every_program_with_a_zygote_of_its_own_exists() -> None:
    assert set(PROGRAMS) >= FRESH

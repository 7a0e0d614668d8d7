"""A short run of `python -m benchmarks.fuzz`: every exception that a mutated line raises is caught."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.fuzz.agent_side import fuzz_agent
from benchmarks.fuzz.controller_side import fuzz_controller

pytestmark = pytest.mark.timeout(100)


def test_no_line_of_a_host_ends_the_job_or_harms_another_host(tmp_path: Path):
    tally = fuzz_controller(tmp_path, lines=400, seed=3)
    assert tally.lines >= 400
    assert not tally.uncaught, tally.examples
    assert tally.lost > 100, "most of them are nonsense, for which the host loses its link"


@pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux")
def test_no_line_of_a_rank_a_spawner_or_a_controller_ends_an_agent(tmp_path: Path):
    tally = fuzz_agent(tmp_path, lines=400, seed=3)
    assert tally.lines == 400
    assert not tally.uncaught, tally.examples

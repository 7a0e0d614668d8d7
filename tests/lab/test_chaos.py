"""Two rounds of `python -m benchmarks.chaos`; run it for minutes or hours to find what nobody thought of."""

from __future__ import annotations

import os

import pytest
from benchmarks.chaos.__main__ import main

FIRST = 63
"""ssh: a frozen host and two killed connections, which the job survives; then a killed rank and a cut cable."""


@pytest.mark.lab
@pytest.mark.timeout(120)
@pytest.mark.skipif(os.getuid() != 0, reason="frozen hosts and cut cables need a lab started as root")
def test_two_rounds_have_no_violation(capsys: pytest.CaptureFixture[str]):
    code = main(["--seed", str(FIRST), "--rounds", "2", "--lanes", "1"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert "2 rounds with " in printed, printed

"""Failures that end a running job, made on lab hosts: the first line names who, the next ones say why and what to do.

The faults are those of `python -m benchmarks.explanations`, which tries all of them on every rank.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.explanations.fault import Fault
from benchmarks.explanations.faults import FAULTS, ORDINARY
from benchmarks.explanations.trial import try_fault
from launching import alive, alone_with_the_memory_killer

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

PLAIN = [fault for fault in (*FAULTS, ORDINARY) if not fault.torch and fault.row != 50]  # 50: test_run_ssh has it
TORCH = [fault for fault in FAULTS if fault.mode in ("shm", "shapes", "exit", "model", "slow_raise", "save")]


def explained(lab: Lab, fault: Fault, shared: Path) -> None:
    score = try_fault(lab, fault, shared)
    assert score.named, score.said
    assert score.words, score.said
    assert score.fix, score.said
    assert not alive(lab, lab.names)


@pytest.mark.parametrize("fault", PLAIN, ids=lambda fault: fault.name)
def test_a_failure_of_the_machine_is_reported_with_its_cause_and_a_fix(
    cluster: Lab, shared: Path, fault: Fault
) -> None:
    with alone_with_the_memory_killer():
        explained(cluster, fault, shared)


@pytest.mark.torch
@pytest.mark.parametrize("fault", TORCH, ids=lambda fault: fault.name)
def test_a_failure_under_torch_is_reported_with_its_cause_and_a_fix(cluster: Lab, shared: Path, fault: Fault) -> None:
    explained(cluster, fault, shared)

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_jobs import SlurmEngine
from engine_promises import Promises, nothing_left, scripts  # noqa: F401

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

@pytest.fixture(scope="module")
def engine(shared: Path) -> Iterator[SlurmEngine]:
    with Lab(3, slurm=True, gpus={"h1": 2, "h2": 1}, bind=(shared,)) as lab:
        yield SlurmEngine(lab, shared)

class TestEveryEngine(Promises):
    pass

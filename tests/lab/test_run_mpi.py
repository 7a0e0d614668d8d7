from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_jobs import MpiEngine
from engine_promises import Promises, nothing_left, scripts  # noqa: F401

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def hosts(shared: Path) -> Iterator[Lab]:
    with Lab(3, mpi=True, gpus={"h1": 2, "h2": 1}, bind=(shared,)) as lab:
        yield lab


@pytest.fixture(scope="module", params=["openmpi", "hydra"])
def engine(hosts: Lab, shared: Path, request) -> MpiEngine:
    return MpiEngine(hosts, shared, request.param)


class TestEveryEngine(Promises):
    pass

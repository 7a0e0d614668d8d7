from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_jobs import PbsEngine
from engine_promises import Promises, nothing_left, scripts  # noqa: F401
from pbs import PbsSite

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def engine(shared: Path) -> Iterator[PbsEngine]:
    with Lab(3, gpus={"h1": 2, "h2": 1}, bind=(shared,)) as lab, PbsSite(lab, shared) as site:
        yield PbsEngine(lab, shared, site)


class TestEveryEngine(Promises):
    pass

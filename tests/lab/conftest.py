"""Fixtures of the tests with real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.lab import Lab

pytest.register_assert_rewrite("engine_promises")  # tests that several files share


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that this machine and all lab hosts of the module share, as over NFS."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def cluster(shared: Path) -> Iterator[Lab]:
    """Three hosts for all tests of a module: the controller runs in h1, ranks where a test puts them."""
    if os.getuid() != 0:
        pytest.skip("faults and host files need a lab made by root")
    with Lab(3, bind=(shared,)) as lab:
        yield lab

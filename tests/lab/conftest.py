"""Fixtures of the tests with real processes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import launching
import pytest
from bare import ENV
from kube import KubeCluster
from launching import run_here
from recipes import Interpreter
from warm_python import WarmMuster, WarmPython

from muster.lab import Lab


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that this machine and all lab hosts of the module share, as over NFS."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def cluster(shared: Path) -> Iterator[Lab]:
    """Three hosts for all tests of a module: the controller runs in h1, ranks where a test puts them."""
    if os.getuid() != 0:
        pytest.skip("faults and host files need a lab started as root")
    with Lab(3, bind=(shared,)) as lab:
        yield lab


@pytest.fixture
def kube(cluster: Lab, shared: Path) -> Iterator[KubeCluster]:
    """A stand-in for Kubernetes: its API server and the user in h1, room for one pod in each of the other hosts."""
    if shutil.which("kubectl") is None:
        pytest.skip("apt-get install kubernetes-client")
    with KubeCluster(cluster, shared / f"kube-{time.monotonic_ns()}") as standin:
        yield standin


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory for runs of all modules; with `--keep`, they share a zygote, which has imported torch."""
    state = tmp_path_factory.mktemp("kept")
    yield state
    run_here(state, "--end", command="keep", state=state)


def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the workers of xdist share, whose own are in it."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def warm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """The process that has imported torch for all `warm` Pythons."""
    server = WarmPython(of_all_workers(tmp_path_factory) / "warm", ENV)
    yield server
    server.close()


@pytest.fixture(scope="session", autouse=True)
def warm_muster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let `run_here` and `run_in` start commands from a process that has imported Muster."""
    launching.warm_muster = server = WarmMuster(of_all_workers(tmp_path_factory) / ".warm-muster", ENV)
    yield
    launching.warm_muster = None
    server.close()


@pytest.fixture(scope="module")
def warm(warm_server: WarmPython, shared: Path) -> Path:
    """A directory with a `python3` that starts with torch imported, here and on all lab hosts of the module."""
    return warm_server.shims(shared)


@pytest.fixture(scope="module")
def python(warm: Path, shared: Path) -> Iterator[Interpreter]:
    """An interpreter with torch imported, for all recipes of a module."""
    interpreter = Interpreter(warm / "python3", shared)
    yield interpreter
    interpreter.close()

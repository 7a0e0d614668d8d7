"""Packs the code that runs on hosts into bytes that any interpreter can import."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib.abc import InspectLoader
from importlib.util import find_spec
from types import CodeType

from muster import agent, rank, shared
from muster.agent import probes
from muster.shared import bootstrap


def agent_payload(
    job_id: str,
    scheduler: str = "",
    orphaned: str = "",
    attach: Sequence[str] = (),
    *,
    exits_with_job: bool = False,
) -> bytes:
    """The bytes that turn a new interpreter into the agent of a job; it forwards `scheduler`'s signals to its ranks.

    If the agent loses the controller, it runs the shell command `orphaned` when its ranks have ended. It runs `attach`
    with the pid of each rank. If it `exits_with_job`, its exit code is that of the job, otherwise 0.
    """
    modules = {
        f"{name}.{module.name}": _load(f"{package.__name__}.{module.name}")
        for name, package in zip(bootstrap.FOLDERS, (agent, probes, rank, shared), strict=True)
        for module in pkgutil.iter_modules(package.__path__)
        if not module.ispkg
    }
    config = {
        "job": job_id,
        "scheduler": scheduler,
        "orphaned": orphaned,
        "attach": list(attach),
        "exits_with_job": exits_with_job,
    }
    return bootstrap.payload(bootstrap.pack(modules), "agent.agent", config)


def _load(name: str) -> tuple[str, CodeType]:
    spec = find_spec(name)
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    # get_code uses python's cached byte code; only a changed file is compiled.
    source, code = spec.loader.get_source(name), spec.loader.get_code(name)
    assert source is not None
    assert code is not None
    return source, code

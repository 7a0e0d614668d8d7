"""Packs the code that runs on hosts into bytes that any interpreter can import."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from muster import agent, rank, shared
from muster.agent import probes
from muster.shared import bootstrap

if TYPE_CHECKING:
    from importlib.abc import InspectLoader  # imports tempfile and zipfile, for every command


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
    with the pid of each rank. If it `exits_with_job`, its exit code is that of the job, otherwise 0. An interpreter of
    another version asks for `agent_sources`.
    """
    # get_code uses python's cached byte code; only a changed file is compiled.
    codes = {short: code for short, name in _modules().items() if (code := _loader(name).get_code(name)) is not None}
    config = {
        "job": job_id,
        "scheduler": scheduler,
        "orphaned": orphaned,
        "attach": list(attach),
        "exits_with_job": exits_with_job,
    }
    return bootstrap.payload(bootstrap.pack_codes(codes), "agent.agent", config)


def agent_sources() -> bytes:
    """The answer to an interpreter that cannot read our byte code."""
    sources = {short: _loader(name).get_source(name) or "" for short, name in _modules().items()}
    return bootstrap.source_answer(bootstrap.pack_sources(sources))


def _modules() -> dict[str, str]:
    """The name on a host, and the name here, of every module that is sent."""
    return {
        f"{folder}.{module.name}": f"{package.__name__}.{module.name}"
        for folder, package in zip(bootstrap.FOLDERS, (agent, probes, rank, shared), strict=True)
        for module in pkgutil.iter_modules(package.__path__)
        if not module.ispkg
    }


def _loader(name: str) -> InspectLoader:
    spec = find_spec(name)
    assert spec is not None
    return cast("InspectLoader", spec.loader)

"""The agent's package as bytes that any interpreter can import."""

from __future__ import annotations

import pkgutil
from importlib.abc import InspectLoader
from importlib.util import find_spec
from types import CodeType

import muster.agent
from muster.agent import boot


def agent_payload(job_id: str, scheduler: str = "") -> bytes:
    """What is sent to a new interpreter to make it the agent of a job; a `scheduler`'s signals it gives its ranks."""
    names = ["__init__", *(module.name for module in pkgutil.iter_modules(muster.agent.__path__))]
    modules = {name: _load(name) for name in names}
    return boot.payload(boot.pack(modules), "main", {"job": job_id, "scheduler": scheduler})


def _load(name: str) -> tuple[str, CodeType]:
    full = muster.agent.__name__ if name == "__init__" else f"{muster.agent.__name__}.{name}"
    spec = find_spec(full)
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    # get_code reads the byte code python keeps beside the source; only a changed file is compiled.
    source, code = spec.loader.get_source(full), spec.loader.get_code(full)
    assert source is not None
    assert code is not None
    return source, code

"""Makes each large parser once: argparse takes 4 ms to add the options of `muster run`, the rest of a refusal 1 ms."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from functools import cache
from types import ModuleType
from typing import Any

import pytest

from muster.api import run_options
from muster.api.arguments import Parser
from muster.cli import bench, check, config, run, submit


def _once(make: Callable[..., Parser]) -> Callable[..., Parser]:
    """Return a function that copies the parser of its first call: a command may change its own."""
    first = cache(make)

    def copied(**settings: Any) -> Parser:
        return copy.copy(first(**settings))

    return copied


_MAKERS: list[tuple[ModuleType, str, Callable[..., Parser]]] = [
    (run_options, "run_parser", _once(run_options.run_parser)),
    *((module, "parser", _once(module.parser)) for module in (bench, check, config, run, submit)),
]


@pytest.fixture(autouse=True, scope="module")
def parsers_once() -> Generator[None]:
    """Make parsers once for all tests of a module that imports this fixture."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, make in _MAKERS:
            patch.setattr(module, name, make)
        yield

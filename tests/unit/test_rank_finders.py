"""The finders that a rank adds to sys.meta_path: whatever the script does there, its imports succeed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from muster.rank.reporter import _BeforeTorch
from muster.rank.torch_groups import OnImport

pytestmark = pytest.mark.timeout(60)

NAME = "module_that_a_script_imports"


class Wrapper:
    """What a tool that records imports puts around each finder."""

    def __init__(self, finder: Any) -> None:
        self.find_spec: Callable[..., Any] = finder.find_spec


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the two finders, which have just been added, will have reported; torch is a file with nothing in it."""
    for name in (NAME, "torch"):
        (tmp_path / f"{name}.py").write_text("")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    found: list[str] = []
    before, after = _BeforeTorch(lambda: found.append("torch")), OnImport(NAME, lambda module: found.append(NAME))
    monkeypatch.setattr(sys, "meta_path", [before, after, *sys.meta_path])
    return found


def test_finders_leave_when_they_have_found_their_module(calls: list[str]):
    others = sys.meta_path[2:]
    for name in ("torch", NAME):
        assert find_spec(name) is not None
    assert sys.meta_path == others
    assert calls == ["torch"], "the other module has not been loaded"


def test_a_script_that_wraps_all_finders_imports_as_without_muster(calls: list[str]):
    sys.meta_path[:] = [Wrapper(finder) for finder in sys.meta_path]  # type: ignore[list-item]
    for name in ("torch", NAME):
        import_module(name)
        sys.modules.pop(name)
        import_module(name)
        sys.modules.pop(name)
    assert calls == ["torch", NAME]


def test_a_loop_over_the_finders_reaches_every_one(calls: list[str]):
    begun = list(sys.meta_path)
    reached: list[object] = []
    for finder in sys.meta_path:
        reached.append(finder)
        finder.find_spec("torch", None)
        finder.find_spec(NAME, None)
    assert reached == begun

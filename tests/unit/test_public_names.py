"""What `import muster` shows, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import muster


def test_all_is_exactly_what_is_visible():
    shown = {name: getattr(muster, name) for name in muster.__all__}
    assert not any(isinstance(value, ModuleType) for value in shown.values())
    public = {
        name
        for name, value in vars(muster).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and name not in ("annotations", "TYPE_CHECKING")
    }
    assert public | {"__version__"} == set(muster.__all__)
    assert dir(muster) == sorted(muster.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        getattr(muster, "nothing")  # noqa: B009


def loaded_by(code: str) -> set[str]:
    script = f"import sys; before = set(sys.modules); {code}; print(*sorted(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=100, check=True)
    return set(out.stdout.split())


def test_import_muster_loads_nothing_else():
    assert loaded_by("import muster") <= {"muster", "__future__"}


def test_detection_does_not_load_torch_or_the_controller_side():
    loaded = loaded_by("import muster; muster.detect({}); muster.init")
    assert not {"torch", "asyncio", "numpy"} & loaded
    ours = {name for name in loaded if name.startswith("muster.")}
    readers = (
        "muster.errors",
        "muster.hosts",
        "muster.engines",
        "muster.text",
    )  # pure, and the same words on both sides
    assert all(name.startswith(("muster.rank", *readers)) for name in ours)

"""Hides modules that the zygote has imported from the script until it imports them itself.

So `"torch" in sys.modules` is false at the start of the script, as in a fresh interpreter, a library that must be
imported before torch can be, and Muster knows which environment variables the script has set by then.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import ModuleType
    from typing import Any

_PACKAGES = ("torch", "numpy")
"""The hidden packages; torch imports numpy, so importing torch restores both."""

LATE = "|".join(
    (
        # OpenMP, MKL, OpenBLAS and oneDNN read these when they are loaded.
        r"(?:OMP|MKL|OPENBLAS)_(?!NUM_THREADS)\w+|GOMP_\w+|KMP_(?:AFFINITY|BLOCKTIME|SETTINGS)|(?:ONEDNN|DNNL|KINETO)_\w+",
        # torch's C++ code and its Python modules read these when torch is imported.
        r"TORCH_(?:LOGS|TRACE|CPP|SHOW|ALLOW|BLAS|LINALG|COMPILE|FX|USE|CUDA_SANITIZER|DEVICE_BACKEND)\w*|PYTORCH_JIT\w*",
        r"TORCHDYNAMO_\w+|TORCHINDUCTOR_(?!CACHE_DIR)\w+",
    )
)
"""Matches environment variables that have no effect if they are set after torch was loaded, as in a forked rank.

Thread counts are not included: torch and OpenBLAS can change them later.
"""

BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Environment variables that bind threads to CPUs on library load; all forks of the zygote would share its CPU."""


def binds_threads(env: Mapping[str, str]) -> str:
    """The variable that binds threads to CPUs in this environment; empty if none does."""
    return next((name for name in BINDING if env.get(name, "").strip().lower() not in ("", "false", "none")), "")


def hide(preloaded: Collection[str], on_import: Callable[[str], None]) -> None:
    """Remove torch and numpy from sys.modules; the first import restores them and calls `on_import` with its name.

    If the user preloads other modules, nothing is hidden: those already have torch and will not import it again.
    """
    if any(name.partition(".")[0] not in _PACKAGES for name in preloaded):
        on_import("torch")
        return
    for package in _PACKAGES:
        if package in sys.modules:
            modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package}
            for name in modules:
                del sys.modules[name]
            sys.meta_path.insert(0, _Hidden(package, modules, on_import))


class _Hidden:
    """A finder and loader for a package that is already imported."""

    def __init__(self, package: str, modules: dict[str, ModuleType], on_import: Callable[[str], None]) -> None:
        self.package = package
        self.modules = modules
        self.on_import = on_import
        self._spec: Any = modules[package].__spec__

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != self.package:
            return None
        from copy import copy

        spec = copy(self._spec)
        spec.loader = self
        return spec

    def create_module(self, spec: Any) -> ModuleType:
        # Restored here, so that another thread never sees the package without its modules.
        others = [finder for finder in sys.meta_path if isinstance(finder, _Hidden) and finder is not self]
        for hidden in [*(others if self.package == "torch" else ()), self]:
            sys.modules.update(hidden.modules)
            sys.meta_path.remove(hidden)  # type: ignore[arg-type]
        return self.modules[self.package]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        self.on_import(self.package)

    def __getattr__(self, name: str) -> Any:
        """Forward the rest of the loader interface, such as `get_source` and `get_data`."""
        return getattr(self._spec.loader, name)


def changed_since(before: Mapping[str, str]) -> list[str]:
    """The variables matching LATE that the script has set, changed or removed since."""
    import re

    names = [name for name in {**before, **os.environ} if os.environ.get(name) != before.get(name)]
    return sorted(name for name in names if re.fullmatch(LATE, name))

"""Modules that the zygote imported and a rank has not: hidden from the script until it imports them itself.

So `"torch" in sys.modules` is as false at the start of the script as in a fresh interpreter, a library that insists on
being imported before torch can be, and what the script has set in its environment by then is known.
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
"""What is hidden; torch imports numpy, so the first brings back both."""

LATE = "|".join(
    (
        # OpenMP, MKL, OpenBLAS and oneDNN read theirs when they are loaded.
        r"(?:OMP|MKL|OPENBLAS)_(?!NUM_THREADS)\w+|GOMP_\w+|KMP_(?:AFFINITY|BLOCKTIME|SETTINGS)|(?:ONEDNN|DNNL|KINETO)_\w+",
        # torch's C++ code and its Python modules read theirs when torch is imported.
        r"TORCH_(?:LOGS|TRACE|CPP|SHOW|ALLOW|BLAS|LINALG|COMPILE|FX|USE|CUDA_SANITIZER|DEVICE_BACKEND)\w*|PYTORCH_JIT\w*",
        r"TORCHDYNAMO_\w+|TORCHINDUCTOR_(?!CACHE_DIR)\w+",
    )
)
"""A pattern of variables that have no effect when they are set after torch was loaded, as in every forked rank.

Numbers of threads are not among them: torch and OpenBLAS can change theirs later.
"""

BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables that bind threads to CPUs when a library is loaded: all forks of the zygote would share its CPU."""


def binds_threads(env: Mapping[str, str]) -> str:
    """The variable that binds threads to CPUs in this environment; empty when none does."""
    return next((name for name in BINDING if env.get(name, "").strip().lower() not in ("", "false", "none")), "")


def hide(preloaded: Collection[str], on_import: Callable[[str], None]) -> None:
    """Take torch and numpy out of sys.modules; the first import brings them back and calls `on_import` with its name.

    Nothing is hidden where the user had other modules preloaded: those have torch already, and never import it again.
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
    """A finder and loader for a package that has been imported already."""

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
        # Here, so that another thread never finds the package without its modules.
        others = [finder for finder in sys.meta_path if isinstance(finder, _Hidden) and finder is not self]
        for hidden in [*(others if self.package == "torch" else ()), self]:
            sys.modules.update(hidden.modules)
            sys.meta_path.remove(hidden)  # type: ignore[arg-type]
        return self.modules[self.package]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        self.on_import(self.package)

    def __getattr__(self, name: str) -> Any:
        """Whatever else is asked of a loader: `get_source`, `get_data`."""
        return getattr(self._spec.loader, name)


def changed_since(before: Mapping[str, str]) -> list[str]:
    """The variables that torch reads when it is loaded and that the script has set, changed or removed since."""
    import re

    names = [name for name in {**before, **os.environ} if os.environ.get(name) != before.get(name)]
    return sorted(name for name in names if re.fullmatch(LATE, name))

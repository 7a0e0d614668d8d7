"""Modules that the zygote imported and a rank has not: hidden from the script until it imports them itself.

So `"torch" in sys.modules` is as false at the start of the script as in a fresh interpreter, a library that insists on
being imported before torch can be, and what the script has set in its environment by then is known.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

_PACKAGES = ("torch", "numpy")
"""What is hidden; torch imports numpy, so the first brings back both."""

LATE = (
    # OpenMP, MKL and oneDNN read theirs when they are loaded
    *("OMP_PROC_BIND", "OMP_PLACES", "OMP_STACKSIZE", "OMP_WAIT_POLICY", "OMP_DYNAMIC", "OMP_SCHEDULE"),
    *("OMP_THREAD_LIMIT", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "KMP_AFFINITY", "KMP_BLOCKTIME"),
    *("MKL_DYNAMIC", "MKL_DEBUG_CPU_TYPE", "OPENBLAS_CORETYPE", "ONEDNN_VERBOSE", "DNNL_VERBOSE"),
    *("ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "KINETO_USE_DAEMON"),
    # torch's C++ code and its Python modules read theirs when torch is imported
    *("TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_LOGS_FORMAT", "TORCH_TRACE", "TORCH_CPP_LOG_LEVEL"),
    *("TORCH_SHOW_CPP_STACKTRACES", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_CUDA_SANITIZER"),
    *("TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCH_USE_RTLD_GLOBAL", "TORCH_BLAS_PREFER_CUBLASLT", "PYTORCH_JIT"),
    *("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCHDYNAMO_VERBOSE", "TORCHDYNAMO_SUPPRESS_ERRORS"),
    *("TORCH_COMPILE_DEBUG", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_FORCE_DISABLE_CACHES"),
    *("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_FREEZING"),
)
"""Variables that have no effect when they are set after torch was loaded, which in a forked rank is always."""

BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables that bind threads to CPUs when a library is loaded: all forks of the zygote would share its CPU."""


def binds_threads(env: Mapping[str, str]) -> str:
    """The variable that binds threads to CPUs in this environment; empty when none does."""
    return next((name for name in BINDING if env.get(name, "").strip().lower() not in ("", "false", "none")), "")


def hide(on_import: Callable[[str], None]) -> None:
    """Take torch and numpy out of sys.modules; the first import brings them back and calls `on_import` with its name."""
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

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != self.package:
            return None
        from copy import copy

        spec: Any = copy(self.modules[name].__spec__)
        spec.loader = self
        return spec

    def create_module(self, spec: Any) -> ModuleType:
        self._spec = self.modules[self.package].__spec__
        return self.modules[self.package]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        others = [finder for finder in sys.meta_path if isinstance(finder, _Hidden) and finder is not self]
        for hidden in [self, *(others if self.package == "torch" else ())]:
            sys.meta_path.remove(hidden)  # type: ignore[arg-type]
            sys.modules.update(hidden.modules)
        self.on_import(self.package)


def changed_since(before: Mapping[str, str]) -> list[str]:
    """The variables that torch reads when it is loaded and that the script has set or changed since."""
    return [name for name in LATE if os.environ.get(name) != before.get(name)]

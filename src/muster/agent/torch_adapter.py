"""Every private name of torch that Muster touches, in one place; `tests/lab/test_torch_adapter.py` holds them."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

C10D = "torch.distributed.distributed_c10d"

_RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Flight recorders: gloo's (and, in time, every backend's), and NCCL's own."""


def collectives_done() -> int:
    """How many collectives have finished, over all process groups (8 microseconds)."""
    return sum(_last_numbers("last_completed_collective").values())


def collectives_begun() -> int:
    """How many collectives have been called: exact, where the count of finished ones lags a moment behind."""
    return sum(_last_numbers("last_enqueued_collective").values())


def _last_numbers(key: str) -> dict[str, int]:
    """The number of the last collective per process group, from the flight recorders.

    Empty when no group has one, or when this torch has no recorder.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")  # a script that has not imported it has done none
    if c10d is None:
        return {}
    import json

    found: dict[str, int] = {}
    for name in _RECORDERS:
        dump: Callable[..., str | bytes] | None = vars(c10d).get(name)
        if dump is None:
            continue
        try:
            status: dict[str, dict[str, str]] = json.loads(dump(includeCollectives=False)).get("pg_status") or {}
            for group, state in status.items():
                last = int(state.get(key, -1))
                found[group] = max(found.get(group, 0), last)
        except Exception:
            continue  # a recorder that changed its form must not disturb the script
    return {group: number for group, number in found.items() if number > 0}


def after_init_process_group(call: Callable[[], None]) -> None:
    """Have `call` run after the script has created its default process group, whenever torch gets imported."""
    if C10D in sys.modules:
        _wrap(sys.modules[C10D], call)
        _wrap(sys.modules["torch.distributed"], call)
    else:
        sys.meta_path.insert(0, _OnImport(call))


def _wrap(module: ModuleType, call: Callable[[], None]) -> None:
    original: Callable[..., Any] | None = getattr(module, "init_process_group", None)
    if original is None:
        return
    from functools import wraps

    @wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        call()
        return result

    module.__dict__["init_process_group"] = init_process_group


class _OnImport:
    """Finds torch's c10d module through the other finders and wraps its one function once it is loaded."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != C10D:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _wrap(module, self.call)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def reseed() -> None:
    """Give a forked rank fresh random state, as a new interpreter would have; `random` does so by itself."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(None)


def set_threads(env: Mapping[str, str]) -> None:
    """Say again to torch and OpenBLAS how many threads to use: they read it when the zygote loaded them."""
    torch = sys.modules.get("torch")
    omp = _number(env.get("OMP_NUM_THREADS"))
    if torch is not None and omp:
        import os

        torch.set_num_threads(min(omp, len(os.sched_getaffinity(0))))  # torch itself goes no higher
    blas = _number(env.get("OPENBLAS_NUM_THREADS")) or omp
    if "numpy" in sys.modules and blas:
        _set_openblas_threads(blas)


def _number(text: str | None) -> int:
    """The first number of `4` or `4,2` (nested levels); 0 where there is none, as libgomp does with nonsense."""
    first = (text or "").split(",")[0].strip()
    return int(first) if first.isdigit() else 0


def _set_openblas_threads(count: int) -> None:
    import ctypes

    with open("/proc/self/maps") as file:
        libraries = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if "openblas" in line}
    for path in libraries:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue  # the file was replaced since
        for prefix in ("", "scipy_"):
            for suffix in ("", "64_", "_64"):
                function = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
                if function is not None:
                    function(count)


def is_safe_to_fork() -> str:
    """Why a process that has imported torch must not fork ranks; empty when it may."""
    import os
    from threading import active_count

    threads = len(os.listdir("/proc/self/task"))
    if threads > 1 or active_count() > 1:
        return f"{threads} threads are running after the imports"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialised after the imports"
    return ""

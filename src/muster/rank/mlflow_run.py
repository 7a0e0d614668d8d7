"""Keeps the id of a rank's MLflow run for a requeued job, which continues it: MLflow chooses the ids of runs itself."""

from __future__ import annotations

import os
import sys

from .torch_groups import OnImport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

FILE = "MUSTER_MLFLOW_RUN"
"""Environment variable with the path of the file for the id; set in jobs that may be requeued."""

_MODULE = "mlflow.tracking.fluent"


def install() -> None:
    """Keep the id of the first run that this rank starts."""
    path = os.environ[FILE]
    if _MODULE in sys.modules:
        for name in (_MODULE, "mlflow"):
            _wrap(sys.modules[name], path)
    else:
        sys.meta_path.insert(0, OnImport(_MODULE, lambda module: _wrap(module, path)))  # type: ignore[arg-type]


def _wrap(module: ModuleType, path: str) -> None:
    from functools import wraps

    start: Any = module.start_run

    @wraps(start)
    def start_run(*args: Any, **options: Any) -> Any:
        run = start(*args, **options)
        try:
            with open(path, "x") as file:
                file.write(run.info.run_id)
        except (AttributeError, OSError, TypeError):
            pass  # the id is kept already, or cannot be: the next run is then another one
        return run

    module.start_run = start_run  # type: ignore[attr-defined]

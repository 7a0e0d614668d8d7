"""Muster runs an unmodified torchrun or DDP script on every GPU you have.

In a script, `import muster` is optional; it gives `with muster.init() as world:` under every launcher.
`muster.run("train.py", hosts="a:8,b:8")` runs a script from Python, as `muster run` does from a shell, and
`muster.launch(function, hosts="a:8,b:8")` a Python function on every rank.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Batches",
    "Checkpoints",
    "Detection",
    "LaunchError",
    "MusterError",
    "Outcome",
    "Progress",
    "RunSpec",
    "UsageError",
    "World",
    "__version__",
    "detect",
    "init",
    "launch",
    "measure_shares",
    "run",
    "together",
    "warm_up",
]

TYPE_CHECKING = False  # type checkers read it as True; importing it from typing would cost every start 5 ms
if TYPE_CHECKING:
    from muster.api.launch import launch
    from muster.api.outcome import Outcome
    from muster.api.run_script import run
    from muster.errors import LaunchError, MusterError, UsageError
    from muster.rank.world.context import World, init
    from muster.rank.world.detect import Detection, detect
    from muster.spec import RunSpec
    from muster.training.batches import Batch, Batches
    from muster.training.checkpoints import Checkpoints
    from muster.training.progress import Progress
    from muster.training.shares import measure_shares
    from muster.training.together import together
    from muster.training.warm_up import warm_up

_HOMES = {
    "Batch": "muster.training.batches",
    "Batches": "muster.training.batches",
    "Checkpoints": "muster.training.checkpoints",
    "Detection": "muster.rank.world.detect",
    "LaunchError": "muster.errors",
    "MusterError": "muster.errors",
    "Outcome": "muster.api.outcome",
    "Progress": "muster.training.progress",
    "RunSpec": "muster.spec",
    "UsageError": "muster.errors",
    "World": "muster.rank.world.context",
    "detect": "muster.rank.world.detect",
    "init": "muster.rank.world.context",
    "launch": "muster.api.launch",
    "measure_shares": "muster.training.shares",
    "run": "muster.api.run_script",
    "together": "muster.training.together",
    "warm_up": "muster.training.warm_up",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used, so that `import muster` costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

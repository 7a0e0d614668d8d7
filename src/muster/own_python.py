"""How another interpreter runs Muster: never with modules of the working directory, which may not be the user's."""

from __future__ import annotations

import sys

_HAS_SAFE_PATH = sys.version_info >= (3, 11)
"""Whether `python -P` exists."""


def module_argv(module: str, executable: str = sys.executable, *, has_flag: bool = _HAS_SAFE_PATH) -> tuple[str, ...]:
    """`python -m MODULE`, but without the working directory, which `-m` and `-c` put first into sys.path."""
    if has_flag:
        return (executable, "-P", "-m", module)
    # sys is built in, so nothing is imported before the entry is removed.
    run = f'import sys;del sys.path[0];import runpy;runpy.run_module("{module}",None,"__main__",True)'
    return (executable, "-c", run)

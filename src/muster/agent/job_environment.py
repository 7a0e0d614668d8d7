"""The environment that all ranks of a host share."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def job_environment(given: Mapping[str, str], cwd: str) -> dict[str, str]:
    """The agent's environment with the variables of the job, for ranks in the working directory `cwd`."""
    # As under torchrun, a failed NCCL operation ends its process.
    env = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **os.environ, **given, "PWD": cwd}
    folder = os.path.dirname(sys.executable)
    if folder not in env.get("PATH", "").split(os.pathsep):
        # As in an activated environment, so that the script starts python or ninja of this interpreter.
        env["PATH"] = os.pathsep.join(filter(None, [folder, env.get("PATH")]))
    return env

"""Variables that ranks have here, and the files of this host that set them."""

from __future__ import annotations

import glob
import os
import re

from .reading import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..check_probes import Question

_LIBRARIES = ("NCCL_", "GLOO_", "UCX_", "FI_", "TORCH_NCCL_", "OMP_", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES")
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_PREFIXES = _LIBRARIES + _LAUNCHERS
"""How the names of the variables begin that matter to a job."""

_NAMES_OF_FILES = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN")


def variables(ask: Question) -> dict[str, Any]:
    """Return the variables a rank would have, which file sets each, and what they name that is not here."""
    env = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    files = ["~/.bashrc", "~/.bash_profile", "~/.profile", "~/.zshenv", "~/.cshrc", "/etc/environment"]
    files += ["/etc/bash.bashrc", *sorted(glob.glob("/etc/profile.d/*.sh"))]
    files += ["~/.ssh/environment", "~/.nccl.conf", "/etc/nccl.conf"]
    sources: dict[str, str] = {}
    for path in files:
        for line in read(path).splitlines():
            match = re.match(r"\s*(?:export\s+|setenv\s+)?([A-Z][A-Z0-9_]*)[= ]\s*['\"]?([^'\"#\n]*)", line)
            if match and match.group(1).startswith(_PREFIXES):
                sources.setdefault(match.group(1), path)
                if path.endswith("nccl.conf"):
                    env.setdefault(match.group(1), match.group(2).strip())
    paths = {name: env[name] for name in _NAMES_OF_FILES if "/" in env.get(name, "")}
    return {
        "env": env,
        "sources": sources,
        "gone": {name: path for name, path in paths.items() if not os.path.exists(path)},
        "adapters": sorted(map(os.path.basename, glob.glob("/sys/class/infiniband/*"))),
    }


def profile(ask: Question) -> list[str]:
    """Return which files of the user a shell would read."""
    files = ("~/.bashrc", "~/.profile", "~/.zshenv", "~/.cshrc")
    return [path for path in files if os.path.exists(os.path.expanduser(path))]

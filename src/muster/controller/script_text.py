"""What the source of a script shows about how to start it. Pure."""

from __future__ import annotations

import re
from functools import cache

from muster.rank.preloaded import LATE

# DDP and torch.compile import torch._dynamo when first used: 1.5 s of CPU in every rank unless the zygote has it.
_USES_DYNAMO = re.compile(
    r"DistributedDataParallel|\bDDP\b|torch\.compile|fully_shard|FullyShardedDataParallel|\bFSDP\b"
)

_IMPORTS_TORCH = re.compile(r"^\s*(?:import|from)\s+torch\b", re.MULTILINE)


@cache
def _setting(names: str) -> re.Pattern[str]:
    """Matches code that sets one of these variables in the environment, as its group `name`."""
    name = rf"[\"'](?P<name>{names})[\"']"
    ways = (
        rf"environ\s*\[\s*{name}\s*\]\s*=(?!=)",
        rf"environ\.setdefault\(\s*{name}",
        rf"putenv\(\s*{name}",
        rf"environ\.update\([^)]*?{name}\s*:",
        rf"environ\.update\([^)]*?\b(?P<name>{names})\s*=",
    )
    # A group name may occur only once in a pattern, so each way has its own.
    return re.compile("|".join(way.replace("?P<name>", f"?P<name{index}>") for index, way in enumerate(ways)))


def uses_dynamo(text: str) -> str:
    """The name in a script that makes torch import torch._dynamo; empty if there is none."""
    match = _USES_DYNAMO.search(text)
    return match.group() if match else ""


def sets_before_torch(text: str) -> str:
    """The environment variable that a script sets before it imports torch, which reads it; empty if there is none.

    With a preloaded torch, setting it would have no effect.
    """
    match = _setting(LATE).search(text) if _changes_environment(text) else None
    imported = _IMPORTS_TORCH.search(text)
    if match is None or (imported is not None and imported.start() < match.start()):
        return ""
    return next(name for name in match.groups() if name)


def chooses_port(text: str) -> bool:
    """Whether a script may choose the rendezvous port itself, so that rank 0 must open the store there."""
    if "tcp://" in text:
        return True
    found = _setting("MASTER_PORT").finditer(text) if _changes_environment(text) else ()
    return any(".setdefault" not in match.group() for match in found)


def _changes_environment(text: str) -> bool:
    """Whether a script may set a variable; compiling the patterns that show it takes 3 ms of CPU."""
    return "environ" in text or "putenv" in text

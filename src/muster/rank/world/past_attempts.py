"""What a rank can know about the attempts before its own: how many there were, and what ended the last one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import cast


def attempt_number(env: Mapping[str, str] = os.environ) -> int:
    """The number of restarts before this one, from `muster run` or torchrun; 0 under other launchers."""
    text = env.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(text) if text.isascii() and text.isdigit() else 0


def lost_before(env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What ended the last attempt: a sentence for each lost host, or one for the rank that failed."""
    try:
        found: object = json.loads(env.get("MUSTER_LOST", ""))
    except ValueError:
        return ()
    return tuple(map(str, cast("list[object]", found))) if isinstance(found, list) else ()

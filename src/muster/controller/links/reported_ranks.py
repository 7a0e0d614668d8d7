"""Which ranks a message of a host may be about, and how many CPUs and GPUs a host can have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from muster.shared.wire import ProtocolError

_MOST_CPUS = 1 << 16
_MOST_GPUS = 1 << 10
"""Lists as long as the number of GPUs are made of it."""


def check_counts(cpus: int, gpus: int) -> None:
    """Raise ProtocolError if no host has so many CPUs or GPUs."""
    if not (0 <= cpus <= _MOST_CPUS and 0 <= gpus <= _MOST_GPUS):
        raise ProtocolError(f"message `up`: no host has {cpus} CPUs and {gpus} GPUs")


def check_ranks(message: Mapping[str, Any], ranks: Collection[int], what: str) -> None:
    """Raise ProtocolError if a message is about a rank that its agent does not run; `what` names the message."""
    strange: list[object] = [message["rank"]] if "rank" in message and message["rank"] not in ranks else []
    named = [*message.get("ranks", ()), *message.get("unheard", ())]
    if named:  # a list of numbers, or a dict by numbers as text
        strange += set(map(str, named)) - set(map(str, ranks))
    if strange:
        raise ProtocolError(f"{what} is about rank {ascii(strange[0])[:20]}, which does not run there")


def is_reply(message: Any) -> bool:
    """Whether a message of an agent answers a request."""
    return isinstance(message, dict) and "re" in message and type(cast("Any", message)["re"]) is int

"""Valid messages of every kind, which are then mutated; the samples are those of the unit tests."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "unit"))

import messages

from muster.shared.reports import PASSED_ON


def up() -> dict[str, Any]:
    """The first message of an agent."""
    loopback = {"name": "lo", "addresses": ["127.0.0.1"], "loopback": True}
    return {**messages.UP, "interfaces": [*messages.UP["interfaces"], loopback]}


def event_samples(ranks: list[int], random: Random) -> list[dict[str, Any]]:
    """Every event, about one of these ranks."""
    rank = random.choice(ranks)
    events: list[dict[str, Any]] = [{**fields, "t": kind} for kind, fields in messages.EVENTS.items() if kind != "up"]
    events += [{**messages.REPORTS[kind], "t": kind, "time": 1.0} for kind in PASSED_ON]
    found: list[dict[str, Any]] = []
    for event in events:
        about: dict[str, Any] = {"rank": rank} if "rank" in event or event["t"] in PASSED_ON else {}
        if event["t"] == "gauges":
            about["ranks"] = {str(rank): event["ranks"]["0"]}
        elif "ranks" in event:
            about["ranks"] = [rank]
        found.append({**event, **about})
    return found


def reply_to(request: dict[str, Any], ranks: Iterable[int]) -> dict[str, Any] | None:
    """A valid reply of the agent of these ranks; None if there is none."""
    do = request["do"]
    if do not in messages.REPLIES:
        return None
    reply = dict(messages.REPLIES[do])
    if do in ("stacks", "examine"):
        reply["ranks"] = {str(rank): reply["ranks"]["0"] for rank in ranks}
    elif do == "deadline":
        reply.update(ranks=list(ranks), unheard=[])
    elif do == "dial":
        reply["results"] = [{**target, "problem": ""} for target in request["targets"]]
    return {"re": request["id"], **reply}


def report_samples() -> list[dict[str, Any]]:
    """Every report of a rank."""
    return [{**fields, "t": kind, "time": 1.0} for kind, fields in messages.REPORTS.items()]


def news_samples() -> list[dict[str, Any]]:
    """Every message of a spawner."""
    return [{**fields, "t": kind} for kind, fields in messages.NEWS.items()]


_HEAVY = ("prepare", "probe", "unpack", "notices", "read_results", "dial", "listen", "examine", "hold", "another_port")


def request_samples(*, heavy: bool) -> list[dict[str, Any]]:
    """The requests of a controller that start processes or open ports (`heavy`), or the others."""
    samples = {**messages.REQUESTS, "prepare": {**messages.REQUESTS["prepare"], "preload": ["json"], "cwd": "/"}}
    return [{"do": do, "id": 1, **fields} for do, fields in samples.items() if (do in _HEAVY) == heavy]

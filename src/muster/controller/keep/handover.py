"""Hands agents from a run to the keeper and back: their processes, pipes and sessions."""

from __future__ import annotations

import os
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from muster.controller.keep.keeper_socket import Connection
from muster.controller.keep.messages import Agent, Entry
from muster.controller.links.child_process import Child, Handed
from muster.controller.links.link import AgentLink
from muster.controller.links.piped import PipeLine
from muster.controller.links.reported_ranks import check_counts
from muster.engines.engine import Engine, StartCommand
from muster.shared.events import Up
from muster.shared.host_state import Facts
from muster.shared.wire import VERSION

RENEW_LIMIT = 3.0
"""Seconds for an agent to get ready for another job; one that needs longer is replaced by a new one."""


async def renew(
    link: AgentLink, job: str, lease: float, *, environ: Mapping[str, str] | None = None, stdin: bool = False
) -> bool:
    """Let an agent serve another job, or none; returns whether it has a process that can start ranks."""
    answer = await link.request("renew", limit=RENEW_LIMIT, job=job, lease=lease, environ=environ, stdin=stdin)
    check_counts(answer["facts"]["cpus"], answer["facts"]["gpus"])
    link.lease = lease
    link.facts.update(answer["facts"])  # type: ignore[arg-type]
    link.clock_offset = answer["facts"]["time"] - time.time()
    return answer["zygote"]


def give(connection: Connection, link: AgentLink, entry: Entry) -> None:
    """Send an idle agent over a connection; if that fails, its pipes close and it ends."""
    line = link.lines.line
    assert line is not None
    assert isinstance(line.child, Child)
    session, next_id = link.hand_over()
    child = line.child.hand_over()
    message: Agent = {
        "t": "agent",
        "entry": entry,
        "session": session,
        "facts": _facts_of(link.facts),
        "place": link.facts["place"],
        "next_id": next_id,
        "ranks": sorted(link.ranks),
        "pid": child.pid,
        "born": child.born,
        "unsent": b64encode(child.unsent).decode(),
    }
    try:
        connection.send(message, child.descriptors)
    finally:
        for descriptor in child.descriptors:
            os.close(descriptor)


def take(
    message: Agent,
    descriptors: tuple[int, int, int],
    link: AgentLink,
    engine: Engine,
    command: StartCommand,
    on_early_words: Callable[[str], None] = lambda words: None,
) -> None:
    """Continue the session of an agent that has arrived over a connection."""
    handed = Handed(
        pid=message["pid"], born=message["born"], descriptors=descriptors, unsent=b64decode(message["unsent"])
    )
    line = PipeLine(link, engine, command, on_early_words, partial(Child, handed=handed))
    up: Up = {"t": "up", "protocol": VERSION, "place": message["place"], **message["facts"]}
    link.continue_over(line, message["session"], up, message["next_id"], message["ranks"])


def _facts_of(up: Up) -> Facts:
    return cast("Facts", {name: value for name, value in up.items() if name not in ("t", "protocol", "place")})

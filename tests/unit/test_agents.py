"""All agents of a job at once, tried against small programs that speak the channel."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from messages import UP
from waiting import wait_until_async

from muster import controller
from muster.controller.agents import Agents
from muster.controller.links.link import AgentLink
from muster.engines.engine import AgentSpec, Launch, StartCommand
from muster.engines.local.engine import LocalEngine
from muster.hosts import Host
from muster.shared.wire import GREETING

# Sends four events at once when it is first pinged, and reports the number of pings on request.
TALKER = f"""
import json, sys, time
def say(*messages): sys.stdout.write("".join(json.dumps(m) + "\\n" for m in messages)); sys.stdout.flush()
sys.stdout.buffer.write({GREETING!r})
say({{**{UP!r}, "time": time.time()}})
pings = 0
for line in sys.stdin.buffer:
    begin = line.rfind(b'{{"do":')
    if begin < 0: continue              # a part of the agent's code, on whose last line the first order follows
    order = json.loads(line[begin:])
    if order["do"] == "bye": break
    if order["do"] == "hold": say(dict(re=order["id"], port=pings))
    if order["do"] == "ping":
        pings += 1
        if pings == 1: say(*[dict(t="out", rank=0, stream=1, text="")] * 4)
"""


def test_no_lease_runs_out_while_there_is_much_to_hear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(controller.agents, "HEARTBEAT", 0.2)
    heard: list[str] = []

    def on_event(link: AgentLink, event: dict[str, Any]) -> None:
        time.sleep(0.14)  # what comes takes its time, on a busy machine
        heard.append(link.name)

    async def main() -> list[int]:
        hosts = [Host(name=name) for name in ("a", "b")]
        specs = [AgentSpec(host=host, name=host.name) for host in hosts]
        argv = (sys.executable, "-Sc", TALKER)
        commands = tuple(StartCommand(argv=argv, agents=(spec,), remote=False) for spec in specs)
        launch = Launch(engine=LocalEngine(), commands=commands, channel="pipes")
        agents = Agents(launch, tmp_path, on_event=on_event, on_text=lambda _, text: None)
        try:
            await agents.connect("job", lambda error: None)
            agents._ranks_on = {name: range(1) for name in ("a", "b")}
            for link in agents.links:
                link.ranks = {0}
            agents.beat()
            await wait_until_async("8 events", lambda: len(heard) == 8)
            return [(await link.request("hold", limit=20, whom=""))["port"] for link in agents.links]
        finally:
            for link in agents.links:
                await link.close(5)

    assert min(asyncio.run(asyncio.wait_for(main(), 40))) >= 5, "one by the beat, and others on the way"

"""All agents of a job at once, tried against small programs that speak the channel."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from messages import UP

from muster.controller.agents import Agents
from muster.controller.links.link import AgentLink
from muster.engines.command import Command
from muster.engines.engine import AgentSpec, Piped
from muster.hosts import Host
from muster.output.screen import Screen
from muster.shared.wire import GREETING

# Tells four things at once when it is first pinged, and how often it was pinged when it is asked.
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


def test_no_lease_runs_out_while_there_is_much_to_hear(tmp_path: Path):
    heard: list[str] = []

    def on_event(link: AgentLink, event: dict[str, Any]) -> None:
        time.sleep(0.7)  # what comes takes its time, on a busy machine
        heard.append(link.name)

    async def main() -> list[int]:
        hosts = [Host(name=name) for name in ("a", "b")]
        commands = tuple(Command(host=host, argv=(sys.executable, "-Sc", TALKER), over_ssh=False) for host in hosts)
        seats = tuple(AgentSpec(host=host, name=host.name) for host in hosts)
        engine = Piped(name="local", seats=seats, commands=commands)
        agents = Agents(engine, tmp_path, Screen(quiet=True), on_event=on_event, on_text=lambda _, text: None)
        try:
            await agents.connect("job")
            agents.beat()
            while len(heard) < 8:
                await asyncio.sleep(0.05)
            return [(await link.request("hold", limit=20, whom=""))["port"] for link in agents.links]
        finally:
            for link in agents.links:
                await link.close(5)

    assert min(asyncio.run(asyncio.wait_for(main(), 40))) >= 5, "one by the beat, and others on the way"

"""The controller's handle on one agent, tried against small programs that speak the channel."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from messages import UP
from moving_time import move_on
from waiting import wait_until_async

from muster.controller.links.link import AgentLink
from muster.controller.links.piped import PipeLine
from muster.engines.container.container import Container
from muster.engines.engine import AgentSpec, StartCommand
from muster.engines.local.engine import LocalEngine
from muster.errors import HostError
from muster.hosts import Host
from muster.shared.wire import GREETING

# An agent's voice without an agent: says it is up, and answers pings with a clock that is {offset} s off.
AGENT = """
import json, sys, time
def say(**message): sys.stdout.write(json.dumps(message) + "\\n"); sys.stdout.flush()
sys.stdout.write({noise!r}); sys.stdout.flush()
sys.stdout.buffer.write({greeting!r})
say(**{up!r})
pings = 0
for line in sys.stdin:
    order = json.loads(line)
    if order["do"] == "ping":
        pings += 1
        time.sleep({delays}[min(pings, len({delays})) - 1])
        say(t="pong", sent=order["sent"], time=time.time() + {offset}, got=0)
    elif order["do"] == "session":
        pass
    elif order["do"] == "bye":
        break
    else:
        {otherwise}
"""

FAR = AgentSpec(host=Host(name="far"), name="far")

ECHO = """answer = {"port": order["port"], "problem": "", "owner": None} if "port" in order else {"port": 0}
        say(re=order["id"], **answer)"""


def agent(*, offset: float = 0.0, noise: str = "", delays: str = "[0]", otherwise: str = "pass") -> str:
    up = {**UP, "time": time.time()}
    return AGENT.format(offset=offset, noise=noise, delays=delays, otherwise=otherwise, greeting=GREETING, up=up)


def with_link(code: str, use: Callable[[AgentLink, list[dict[str, Any]]], Awaitable[None]]) -> None:
    """Open a link to a program, use it, and close it; events are collected."""
    events: list[dict[str, Any]] = []

    async def main() -> None:
        command = StartCommand(argv=(sys.executable, "-Sc", code), agents=(FAR,), remote=False)
        link = AgentLink(FAR, lambda _, event: events.append(event), lambda _, text: None)
        try:
            await link.open(PipeLine(link, LocalEngine(), command), b"", 30)
            await use(link, events)
        finally:
            await link.close(5)

    asyncio.run(asyncio.wait_for(main(), 60))


async def pings(link: AgentLink, count: int) -> float:
    """Send some and await the answers; the shortest time that one took, which may err by the half of it."""
    times: list[float] = []
    for _ in range(count):
        begin = time.monotonic()
        link.beat()
        await link.request("hold", limit=30, whom="")  # answered after the ping
        times.append(time.monotonic() - begin)
    return min(times)


@pytest.mark.parametrize("offset", [-600.0, 0.0, 3600.5])
def test_times_of_a_host_whose_clock_is_off_are_shown_on_ours(offset: float):
    async def use(link: AgentLink, _events: list[dict[str, Any]]) -> None:
        shortest = await pings(link, 3)
        assert link.our_time(1_000_000.0 + offset) == pytest.approx(1_000_000.0, abs=shortest)

    with_link(agent(offset=offset, otherwise=ECHO), use)


def test_the_fastest_reply_gives_the_best_clock():
    async def use(link: AgentLink, _events: list[dict[str, Any]]) -> None:
        shortest = await pings(link, 3)
        # An answer that took 0.4 s to come would put the clock off by 0.2 s.
        assert link.our_time(500.0) == pytest.approx(490.0, abs=0.6 * shortest)

    with_link(agent(offset=10.0, delays="[0.4, 0, 0.4]", otherwise=ECHO), use)


def test_noise_of_a_shell_before_the_greeting_is_skipped():
    async def use(link: AgentLink, _events: list[dict[str, Any]]) -> None:
        assert link.facts["python"] == UP["python"]

    with_link(agent(noise='Last login: today\n{"t": "up", "hostname": "liar"}\nprompt$ '), use)


def test_a_request_that_is_not_answered_in_time_names_the_host_and_the_request():
    async def use(link: AgentLink, _events: list[dict[str, Any]]) -> None:
        with pytest.raises(HostError, match="far: no answer to `compare` within 0 s"):
            await link.request("compare", limit=0.2, cwd="/", script=None, digest=None, imports=[])

    with_link(agent(), use)


def test_a_request_is_answered_by_its_own_reply():
    async def use(link: AgentLink, _events: list[dict[str, Any]]) -> None:
        answers = await asyncio.gather(*(link.request("another_port", limit=30, port=n) for n in range(5)))
        assert [answer["port"] for answer in answers] == list(range(5))

    with_link(agent(otherwise=ECHO), use)


def test_an_agent_that_dies_fails_what_waits_for_it_and_is_reported_once():
    async def use(link: AgentLink, events: list[dict[str, Any]]) -> None:
        with pytest.raises(HostError, match="far"):
            await link.request("hold", limit=30, whom="")
        with pytest.raises(HostError, match="far"):
            await link.request("hold", limit=30, whom="")
        assert events == [{"t": "host", "state": "lost"}]

    with_link(agent(otherwise="sys.exit(1)"), use)


def test_rubbish_on_the_channel_loses_the_host_with_a_reason():
    async def use(link: AgentLink, events: list[dict[str, Any]]) -> None:
        with pytest.raises(HostError, match="another program wrote to the agent's channel"):
            await link.request("hold", limit=30, whom="")
        assert events == [{"t": "host", "state": "lost"}]

    with_link(agent(otherwise='print("a print that should not be here", flush=True)'), use)


def test_a_program_that_is_no_agent_is_explained_by_its_last_words():
    with pytest.raises(HostError, match=r"far: .*no room on this ship") as caught:
        with_link("import sys; sys.exit('no room on this ship')", lambda link, events: asyncio.sleep(0))
    assert caught.value.hint


def test_a_program_that_says_nothing_is_given_up_after_the_limit():
    async def main() -> None:
        command = StartCommand(argv=("cat",), agents=(FAR,), remote=False)
        link = AgentLink(FAR, lambda _, event: None, lambda _, text: None)
        try:
            with pytest.raises(HostError, match="far: no agent answered within 0 s"):
                await link.open(PipeLine(link, LocalEngine(), command), b"", 0.3)
        finally:
            await link.close(0.1)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_host_that_pulls_an_image_is_given_the_time_and_its_words_are_shown(tmp_path: Path):
    words: list[str] = []
    pulled = tmp_path / "pulled"
    says = f"""
import os, sys, time
print("far is pulling box:1\\nCopying blob 1", file=sys.stderr, flush=True)
while not os.path.exists({str(pulled)!r}): time.sleep(0.02)
"""
    command = StartCommand(
        argv=(sys.executable, "-Sc", says + agent()),
        agents=(FAR,),
        remote=False,
        box=Container(image="box:1"),
    )

    async def main() -> None:
        link = AgentLink(FAR, lambda _, event: None, lambda _, text: None)
        opening = asyncio.ensure_future(link.open(PipeLine(link, LocalEngine(), command, words.append), b"", 30))
        try:
            await wait_until_async("2 messages", lambda: len(words) == 2)
            await move_on(30)
            pulled.touch()
            await opening
        finally:
            await link.close(5)

    asyncio.run(asyncio.wait_for(main(), 100))
    assert words == ["far is pulling box:1", "far: Copying blob 1"]

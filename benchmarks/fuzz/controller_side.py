"""The controller under mutated lines of one host: links, events, attempt, monitors, status and verdict."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzz.mutations import mutated, mutated_line
from benchmarks.fuzz.tally import Tally
from benchmarks.fuzz.valid_messages import event_samples, reply_to, up
from muster.controller.attempt import Attempt
from muster.controller.controller import Controller
from muster.controller.debug_log import logged
from muster.controller.events import Guard
from muster.controller.links.link import AgentLink
from muster.controller.monitor.hang import Finding, judge, working
from muster.controller.monitor.hang_monitor import HangMonitor
from muster.controller.monitor.hang_text import detail, sentence, still_working
from muster.controller.rendezvous import meet
from muster.controller.summary import show_failure
from muster.engines.engine import AgentSpec, Launch, StartCommand
from muster.engines.local.engine import LocalEngine
from muster.errors import MusterError
from muster.hosts import Host
from muster.job import Job
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.plan import Plan
from muster.shared.wire import GREETING, encode
from muster.spec import RunSpec

_RANKS = 2
"""Ranks per host."""

_LINES = 400
"""Lines per job; then the next one begins."""

_LOOK = 8
"""Lines between two looks at what the lines have left behind."""


class CountingGuard(Guard):
    """Counts every exception in an observer, of which a job reports only the first."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(lambda text: None)
        self._tally = tally

    def __call__(self, what: str) -> Any:
        return self._tally.counted(what)


class AnsweringLine:
    """A connection whose other end answers each request at once."""

    child = None
    why_lost = "connection lost"
    way_back = None

    def __init__(self, random: Random | None) -> None:
        """Replies are mutated if `random` is given."""
        self.link: AgentLink | None = None
        self._random = random

    def send(self, data: bytes) -> None:
        for line in data.splitlines():
            reply = reply_to(json.loads(line), sorted(self.link.ranks)) if self.link is not None else None
            if reply is None or self.link is None:
                continue
            if self._random is not None and self._random.random() < 0.7:
                reply = mutated(reply, self._random, spared=("re",))
            asyncio.get_running_loop().call_soon(self.link.on_data, encode(reply))

    def close(self) -> None: ...

    def leave(self) -> None: ...

    async def explain(self, noise: str) -> MusterError:
        return MusterError("closed")


class FuzzedJob:
    """A job on two hosts, of which the second one is hostile."""

    def __init__(self, folder: Path, random: Random, tally: Tally) -> None:
        self.random, self.tally = random, tally
        specs = [AgentSpec(host=Host(name=name, slots=_RANKS), name=name) for name in ("good", "bad")]
        commands = tuple(StartCommand(argv=("true",), agents=(spec,)) for spec in specs)
        launch = Launch(engine=LocalEngine(), commands=commands, channel="pipes")
        spec = RunSpec(target="train.py", cwd="/code", restarts=3, min_hosts=1, notice="aws")
        job = Job(id="20261115-101500-train-3f9a", spec=spec, hosts=tuple(one.host for one in specs), carried={})
        self.screen = Screen(streams={1: None, 2: None})
        self.logs = LogFiles(self.screen.warning)
        self.controller = Controller(
            job, launch=launch, folder=folder, screen=self.screen, logs=self.logs, begin=time.time()
        )
        self.controller.events.guard = self.controller.observers._guard = CountingGuard(tally)
        self.agents = self.controller.agents
        self.agents.links = [self.new_link(one) for one in specs]
        self.agents.leaders = list(self.agents.links)
        self.good = self.agents.links[0]
        self.controller.status.connected(self.agents.links)
        self.controller.recovery.roster.enroll()
        self.plan = self.controller.recovery.first_plan()
        self.begin_attempt()

    def new_link(self, spec: AgentSpec) -> AgentLink:
        """A link whose agent is up."""
        line = AnsweringLine(self.random if spec.name == "bad" else None)
        link = line.link = AgentLink(spec, self.agents._on_event, lambda name, text: None)
        link.lines.line = line
        link.on_data(GREETING + encode({**up(), "time": time.time()}))
        return link

    @property
    def bad(self) -> AgentLink:
        return self.agents.leader("bad")

    def begin_attempt(self) -> None:
        """Start all ranks."""
        controller, plan = self.controller, self.plan
        recovery = controller.recovery
        controller.events.unsubscribe(recovery.attempt)
        attempt = Attempt(plan, recovery.number, controller.folder, self.screen, self.logs, None)
        recovery.attempt = attempt
        recovery.number += 1
        attempt.subscribe(controller.events)
        controller.observers.begin_attempt(plan, attempt.number)
        controller.monitor.begin(attempt)
        self.agents._ranks_on = {place.name: place.ranks for place in plan.placements}
        for link in self.agents.links:
            link.ranks.update(plan.named(link.name).ranks)
        controller.status.started()

    def feed(self) -> None:
        """Send one mutated event of the bad host, and give the host another link if it has lost its own."""
        link = self.bad
        ranks = list(self.plan.named("bad").ranks)
        message = self.random.choice(event_samples(ranks, self.random))
        line = mutated_line(message, self.random)
        self.tally.lines += 1
        with self.tally.counted("the link"):
            link.on_data(line)
        self.after(link, line)

    def after(self, link: AgentLink, line: bytes) -> None:
        """Check what has become of the links."""
        if link.lost is not None:
            self.tally.lost += 1
            if "internal error" in link.lost.why and not link.lost.why.startswith("its agent failed"):
                self.tally.note("internal error: " + link.lost.why[:200], line)
            self.renew()
        if self.good.lost is not None:
            self.tally.note(f"the other host was lost: {self.good.lost.why[:100]}", line)

    def renew(self) -> None:
        link = self.new_link(self.bad.spec)
        link.ranks.update(self.plan.named("bad").ranks)
        self.agents.put(link)
        self.controller.recovery.roster._on_ready("bad")

    async def look(self) -> None:
        """Do what a controller does with all that: judge, show and store it, and ask the hosts."""
        controller, attempt = self.controller, self.controller.recovery.attempt
        assert attempt is not None
        with self.tally.counted("the status"):
            json.dumps(controller.status.state().as_data()).encode()
        controller.observers.tick(self.agents.links, None)
        with self.tally.counted("the verdict"):
            show_failure(self.screen, attempt.verdict())
            _ = attempt.returned, attempt.first_collective, attempt.trained_alone, attempt.progress
        with self.tally.counted("draining"):
            controller.drain.tick()
        questions: list[Coroutine[Any, Any, Any]] = [self._hang(attempt), self._meet(), self._others()]
        question = self.random.choice(questions)
        for other in questions:
            if other is not question:
                other.close()
        self.tally.lines += 1
        with self.tally.counted("a reply"):
            try:
                await asyncio.wait_for(question, 20)
            except MusterError:
                pass  # the host is lost or refuses, in one sentence
        await asyncio.sleep(0)
        self.after(self.bad, b"(a reply)")

    async def _hang(self, attempt: Attempt) -> None:
        monitor = self.controller.monitor
        hang = HangMonitor(monitor, attempt)
        hang._looks.append((time.monotonic(), await monitor.look(deep=True)))
        found = await monitor.look(deep=True)
        hang._looks.append((time.monotonic(), found))
        ranks = await hang._seen(found)
        monitor.write_stacks(found)
        finding = judge(ranks)
        if finding is not None:
            sentence(finding, ranks)
            detail(finding, ranks)
        waits, busy = working(ranks)
        if waits and busy:
            still_working(waits, [ranks[rank] for rank in busy])
            detail(Finding(waits=waits, culprits=busy), ranks)
        await monitor.compare_calls(attempt)

    async def _meet(self) -> Plan:
        return await meet(self.controller.job, self.agents.leaders, self.plan, self.screen)

    async def _others(self) -> None:
        links = self.agents.leaders
        await self.agents.stop(0.0, lambda host, why: None)
        await asyncio.gather(*(link.request("examine", limit=5, ranks=sorted(link.ranks), seconds=1) for link in links))
        await self.controller.ask_gpus([link.name for link in links])
        await self.controller.preparation.check(links)

    async def close(self) -> None:
        """Let go of what is left."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        self.logs.close()
        self.screen.close()


async def _one_job(folder: Path, random: Random, tally: Tally, lines: int) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: tally.on_exception(context))
    job = FuzzedJob(folder, random, tally)
    controller = job.controller
    with logged(controller.job, controller.launch, folder, job.logs, job.screen):
        for number in range(lines):
            job.feed()
            if number % _LOOK == 0:
                await job.look()
            if number % 100 == 99:
                job.begin_attempt()
        await job.close()


def fuzz_controller(folder: Path, lines: int, seed: int) -> Tally:
    """Feed so many lines, and return what they did."""
    tally = Tally()
    number = 0
    while tally.lines < lines:
        number += 1
        below = folder / str(number)
        below.mkdir()
        asyncio.run(_one_job(below, Random(seed * 1_000_003 + number), tally, min(_LINES, lines - tally.lines)))
        tally.check_files(folder, below)
    return tally

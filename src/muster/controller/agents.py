"""All agents of a job: connects them, starts and ends their ranks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.agent.stopping import time_to_stop
from muster.controller.events import Event
from muster.controller.keep.kept_agents import KeptAgents
from muster.controller.links.agent_package import agent_payload
from muster.controller.links.link import SUSPECT_AFTER, AgentLink
from muster.controller.links.piped import PipedConnector
from muster.controller.stdin_source import Feed, is_for_ranks
from muster.engines.engine import AgentSpec, Launch, leaders
from muster.errors import HostError
from muster.plan import Plan, rank_environment
from muster.shared.requests import RankStart
from muster.shared.wire import HEARTBEAT, LEASE
from muster.text import names

if TYPE_CHECKING:
    from muster.controller.links.dialed import DialedConnector

CONNECT_LIMIT = 60.0
"""Timeout for the first answer of an agent in seconds: 10 s of ssh, and a slow home directory."""

_SILENT_SPARE = 1.0
"""Seconds for the agent of a spare host to exit if it is silent: it runs nothing, and ends by its lease."""

OnLoss = Callable[[str, str], None]
"""Called with a host that is lost, and why."""


class Agents:
    """The links to the agents of one job, and requests to all of them."""

    def __init__(
        self,
        launch: Launch,
        folder: Path,
        lease: float = LEASE,
        *,
        on_event: Callable[[AgentLink, Event], None],
        on_text: Callable[[str, str], None],
    ) -> None:
        """`lease` is the number of seconds without contact after which a host is lost."""
        self.launch = launch
        self.lease = lease
        self.on_event = on_event
        self.on_text = on_text
        self.links: list[AgentLink] = []
        self.leaders: list[AgentLink] = []
        """The links that represent their hosts: all of them, or under MPI the first of each host."""
        self.connector = _connector(launch)(launch, folder, on_text)
        self.failed: set[str] = set()
        """Hosts without a connection."""
        self._feed: Feed | None = None
        """Sends our stdin to rank 0 if its agent does not inherit it."""
        self._inherits = False
        """Whether the agent of rank 0 inherits our stdin."""
        self._heir: AgentLink | None = None
        self._ranks_on: dict[str, range] = {}
        """The ranks on each host of the last attempt that was started."""
        self._is_taking = False
        """Whether it is not known yet which kept agents are usable."""
        self._job_id = ""
        self._beat_due: float | None = None
        self._pinged = 0.0
        self._under_way: set[asyncio.Future[Any]] = set()

    @property
    def scheduler(self) -> str:
        """The scheduler that may signal the ranks itself."""
        return self.launch.engine.signals_from

    def give_stdin(self) -> None:
        """Give our stdin to rank 0; call this before connecting."""
        if is_for_ranks():
            self._inherits = self.connector.give_stdin()
            self._feed = None if self._inherits else Feed()

    async def connect(
        self,
        job_id: str,
        on_failure: Callable[[HostError], None],
        *,
        limit: float = CONNECT_LIMIT,
        kept: KeptAgents | None = None,
        on_kept: Callable[[Collection[str]], None] = lambda hosts: None,
    ) -> None:
        """Start all agents concurrently; `on_failure` is called for each host that fails while others are pending.

        Those that fit of the `kept` ones are used instead; `on_kept` is called with their hosts before others start.
        """
        self._job_id = job_id
        specs = self.launch.agents
        self.links = [self._new_link(spec) for spec in specs]
        self.leaders = [self.links[position] for position in leaders(specs)]

        def failed(error: HostError) -> None:
            self.failed.add(error.host)
            on_failure(error)

        used: Collection[str] = ()
        if kept is not None:
            used = await self._take(kept)
        on_kept(used)
        self._heir = self.links[0]
        missing = [link for link in self.links if link.name not in used]
        if missing:
            await self.connector.connect(missing, self._payload, limit, failed)

    def _new_link(self, spec: AgentSpec) -> AgentLink:
        return AgentLink(spec, self._on_event, self.on_text, self.lease)

    async def _take(self, kept: KeptAgents) -> Collection[str]:
        """Use the kept agents that fit; returns their hosts."""
        links = {link.name: link for link in self.links}
        self._is_taking = True
        taken = await kept.take(links, self._job_id, self.lease, self.links[0] if self._inherits else None)
        if not taken.has_stdin:
            self._inherits, self._feed = False, Feed()
        for link in list(self.links):
            if link.is_attached and link.name not in taken.hosts:  # it is of no use, and gets a new agent
                link.lines.close()
                self.put(self._new_link(link.spec))
        self._is_taking = False
        return taken.hosts

    @cached_property
    def _payload(self) -> bytes:
        """The code of the agents of this job."""
        launch = self.launch
        return agent_payload(
            self._job_id, self.scheduler, launch.orphaned, launch.attach, exits_with_job=launch.engine.exits_with_job
        )

    async def reconnect(self, name: str, limit: float) -> AgentLink:
        """Start an agent again on a host that has none; its link replaces the old one when it is up."""
        old = self.leader(name)
        command = self.launch.engine.launch_one(self.launch, old.spec)
        if command is None:
            raise HostError(name, "its agent cannot be started again without those of the other hosts")
        link = self._new_link(old.spec)
        try:
            await self.connector.connect_one(link, command, self._payload, limit)
        except BaseException:
            await link.close(limit=0)
            raise
        self.put(link)
        return link

    def comes_by_itself(self, name: str) -> bool:
        """Whether nobody here starts the agent of a host: others do, and it dials in."""
        agent = self.leader(name).spec
        return not any(agent in command.agents and command.argv for command in self.launch.commands)

    def put(self, link: AgentLink) -> None:
        """Use this link for its host from now on."""
        for links in (self.links, self.leaders):
            links[:] = [link if each.spec is link.spec else each for each in links]

    def leader(self, name: str) -> AgentLink:
        """The link that represents a host."""
        return next(link for link in self.leaders if link.name == name)

    @property
    def usable(self) -> list[AgentLink]:
        """The links of the hosts whose agents are up."""
        return [link for link in self.leaders if link.facts and not link.lost and not link.closing]

    @property
    def used(self) -> list[AgentLink]:
        """The links of the hosts that run ranks; all of them before the first attempt."""
        return [link for link in self.links if not self._ranks_on or link.name in self._ranks_on]

    def missing(self) -> str:
        """Which hosts are up and which are pending."""
        missing = list(dict.fromkeys(link.name for link in self.links if not link.facts))
        up = len(self.leaders) - len(missing)
        said = f" ({self.connector.last_words})" if self.connector.last_words else ""
        waited_for = [name for name in missing if name not in self.failed]
        return f"{up} of {len(self.leaders)} hosts up, waiting for {names(waited_for)}{said}"

    def beat(self) -> None:
        """Send a heartbeat to every agent; call this every HEARTBEAT seconds."""
        now = time.monotonic()
        late = 0.0 if self._beat_due is None else now - self._beat_due
        for link in self.links:
            if late > 1.0:
                link.excuse(late)
            link.beat()
        self._beat_due = now + HEARTBEAT
        self._pinged = now

    def _on_event(self, link: AgentLink, event: Event) -> None:
        if self._is_taking:
            return
        if not self._is_left_over(link, event):
            self.on_event(link, event)
        # Ranks that write much can delay the next heartbeat until agents assume we are dead: 6.5 s were seen on a
        # machine with a load of 8 per core. Silence of other hosts is not judged here: their messages may be queued.
        now = time.monotonic()
        if self._beat_due is not None and now - self._pinged > HEARTBEAT:
            self._pinged = now
            for each in self.links:
                each.ping()

    # --- the ranks ------------------------------------------------------------------------------------------

    async def start(self, plan: Plan, attempt: int, on_loss: OnLoss) -> None:
        """Start all ranks of an attempt."""
        self._ranks_on = {place.name: place.ranks for place in plan.placements}
        first = self.leader(plan.placements[0].name)
        if self._inherits and first is not self._heir:
            self._inherits, self._feed = False, Feed()  # rank 0 has moved to another agent
        await asyncio.gather(*(self._start_host(link, plan, attempt, on_loss) for link in self.used))
        if self._feed is not None:
            self._feed.begin(first)

    def _is_left_over(self, link: AgentLink, event: Event) -> bool:
        """Whether an event is the last output of a rank of an earlier attempt, whose number nobody has there now."""
        return "rank" in event and event["rank"] not in self._ranks_on.get(link.name, ())

    async def _start_host(self, link: AgentLink, plan: Plan, attempt: int, on_loss: OnLoss) -> None:
        ranks = plan.named(link.name).ranks if link.spec.rank is None else [link.spec.rank]
        link.ranks.update(ranks)
        engine = self.launch.engine
        requests: list[RankStart] = [
            {"rank": rank, "env": {**rank_environment(plan, rank, attempt=attempt), **engine.rank_env(plan, rank)}}
            for rank in ranks
        ]
        fed = 0 if self._feed is not None else None
        try:
            answer = await link.request(
                "start",
                limit=30,
                ranks=requests,
                leader=link in self.leaders,
                store=plan.has_store and link is self.leader(plan.placements[0].name),
                fed=fed,
            )
        except HostError as error:
            on_loss(link.name, error.why)
            return
        if answer["problem"]:
            on_loss(link.name, f"could not start its ranks: {answer['problem']}")

    def signal(self, number: int) -> None:
        """Send a signal to all ranks, except on lost hosts."""
        for link in self.used:
            if not link.lost:
                self._begin(_unless_lost(link.request("signal", limit=5, number=number)))

    async def stop(self, grace: float, on_loss: OnLoss, *, interrupt: bool = False) -> dict[str, list[int]]:
        """End everything that still runs on the remaining hosts, with SIGINT first if `interrupt`.

        Returns the processes that could not be killed, by host.
        """
        if self._feed is not None:
            self._feed.end()
        links = [link for link in self.used if not link.lost and not link.closing]
        stuck = await asyncio.gather(*(self._stop_host(link, grace, on_loss, interrupt) for link in links))
        left: dict[str, list[int]] = {}
        for link, pids in zip(links, stuck, strict=True):
            if pids:  # under MPI a host has several agents
                left.setdefault(link.name, []).extend(pids)
        return left

    async def why_ended(self, *, hit: bool) -> str | None:
        """Why the scheduler ended the job, if it did; after a `hit`, wait for its message."""
        begin = time.monotonic()
        hit = hit or all(link.lost for link in self.links)
        while hit and self.connector.may_explain(time.monotonic() - begin):
            await asyncio.sleep(0.05)
        return self.connector.why_ended()

    def hurry(self, grace: float, on_loss: OnLoss) -> None:
        """Shorten the grace period of a stop in progress."""
        self._begin(self.stop(grace, on_loss))

    async def _stop_host(self, link: AgentLink, grace: float, on_loss: OnLoss, interrupt: bool) -> list[int]:
        limit = time_to_stop(grace, interrupt=interrupt) + 10
        try:
            answer = await link.request("stop", limit=limit, grace=grace, interrupt=interrupt)
        except HostError as error:
            on_loss(link.name, error.why)
            return []
        return answer["left"]

    async def close(self, limit: float, code: int = 0) -> None:
        """End every agent and its connection; `code` is the exit code of the job."""
        used = self.used
        for_spare = min(limit, _SILENT_SPARE)

        def patience(link: AgentLink) -> float:
            return for_spare if link not in used and link.silence > SUSPECT_AFTER else limit

        await asyncio.gather(*(link.close(limit=patience(link), code=code) for link in self.links))
        await self.connector.close()

    def _begin(self, work: Any) -> None:
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


def _connector(launch: Launch) -> type[PipedConnector | DialedConnector]:
    if launch.channel == "pods":
        from muster.controller.links.pod_links import PodConnector  # few jobs run in pods

        return PodConnector
    if launch.channel == "pipes":
        return PipedConnector
    from muster.controller.links.dialed import DialedConnector  # most jobs do not need it

    return DialedConnector


async def _unless_lost(work: Awaitable[object]) -> None:
    try:
        await work
    except HostError:
        pass  # its loss is reported elsewhere

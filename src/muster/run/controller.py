"""The controller: one job from its first connection to its last process."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from traceback import format_exception
from typing import Any

from muster.agent.wire import HEARTBEAT, LAST_GRACE
from muster.errors import EXIT_MUSTER, HostError, MusterError, UsageError
from muster.job import Job
from muster.logs.files import LogFiles
from muster.logs.screen import Screen
from muster.plan import Plan, rank_environment
from muster.run import ready
from muster.run.attempt import Attempt
from muster.run.dialled import DialledConnector
from muster.run.link import AgentLink, LinkLost
from muster.run.lookout import Check, Lookout
from muster.run.meet import another_port, meet
from muster.run.parcel import agent_payload
from muster.run.piped import PipedConnector
from muster.run.timeline import Timeline
from muster.run.verdict import Verdict, is_same_failure
from muster.run.words import count, names, ranks, tilde
from muster.transports import Dialled, Engine, Piped, leaders

CONNECT_LIMIT = 60.0
"""Seconds until an agent must have answered: ssh's own 10 s, and a slow home directory."""

STILL_WAITING = 5.0
"""Seconds between two lines that say what is waited for, where no terminal can renew one."""


class Controller:
    """Runs one job."""

    def __init__(
        self,
        job: Job,
        *,
        engine: Engine,
        nproc: int | None,
        folder: Path,
        screen: Screen,
        logs: LogFiles,
        only: Collection[int] | None,
        begin: float,
        check: Check | None = None,
    ) -> None:
        self.job = job
        self.engine = engine
        self.nproc = nproc
        self.folder = folder
        self.screen = screen
        self.logs = logs
        self.only = only
        self.lookout = Lookout(check, screen.tell)
        self.timeline = Timeline(begin)
        self.links: list[AgentLink] = []
        self.leaders: list[AgentLink] = []
        """The links that speak for their hosts: all of them, or under MPI the first of each host."""
        self.connector: PipedConnector | DialledConnector = (
            PipedConnector(engine) if isinstance(engine, Piped) else DialledConnector(engine, folder, self.on_text)
        )
        self.failed: set[str] = set()
        """Hosts that could not be connected."""
        self.attempt: Attempt | None = None
        self.waiting_for: Callable[[], str] | None = None
        self.grace = job.grace
        self.stopped_by = ""
        """Who ended the job from outside: a signal, a timeout."""
        self.signal: signal.Signals | None = None
        self._body: asyncio.Task[Verdict] | None = None
        self._hurrying: list[asyncio.Future[None]] = []
        self._passed_on: set[signal.Signals] = set()

    # --- the whole ------------------------------------------------------------------------------------------

    def listen_to_signals(self) -> None:
        """Take the signals of this process, which is there for this job alone."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup and `&` in scripts ask us not to listen
                loop.add_signal_handler(number, self.on_signal, number)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, self.pass_on, number)
        loop.add_signal_handler(signal.SIGTSTP, self.on_ctrl_z)

    async def run(self) -> Verdict:
        """Run the job and say how it ended; whatever happens, no process of it is left."""
        asyncio.get_running_loop().set_exception_handler(self.on_bug)
        self._body = asyncio.ensure_future(self.body())
        ticking = asyncio.ensure_future(self.tick())
        verdict: Verdict | None = None
        try:
            verdict = await self._body
        except asyncio.CancelledError:
            pass
        finally:
            self.waiting_for = None
            await self.end()
            ticking.cancel()
        if self.stopped_by:
            usual = self.engine.usual_reason(self.signal) if self.signal is not None else None
            reason = self.connector.why_ended() or usual
            because = f" ({reason})" if reason else ""
            sentence = f"stopped by {self.stopped_by} after {self.timeline.now():.1f} s{because}"
            self.screen.tell(sentence)
            return Verdict(exit_code=EXIT_MUSTER if self.signal is None else 128 + self.signal, sentence=sentence)
        if verdict is None:
            raise MusterError("a bug of Muster ended the job; please report the lines above")
        self.tell_summary(verdict)
        return verdict

    async def body(self) -> Verdict:
        """Connect, prepare, and attempt until there is nothing more to try."""
        try:
            await self.connect()
            plan = await self.prepare()
        except MusterError as error:
            if isinstance(error, LinkLost) or any(link.lost for link in self.links):
                reason = await self.scheduler_reason(hit=True)
                if reason:
                    raise MusterError(reason) from None
            raise
        self.keep(plan)
        previous: Verdict | None = None
        for number in range(self.job.restarts + 1):
            if number:
                plan = await another_port(self.job, self.links[0], plan)
            verdict = await self.try_once(plan, number)
            reason = None if verdict.ok else await self.scheduler_reason()
            if reason:
                return verdict.because(reason)
            if verdict.ok or not verdict.can_restart or number == self.job.restarts:
                return verdict
            if previous is not None and is_same_failure(previous, verdict):
                note = "the same failure came back at the same place without any progress, so it is not tried again"
                return replace(verdict, notes=(*verdict.notes, note))
            self.tell_failure(verdict)
            self.screen.tell(f"restart {number + 1} of {self.job.restarts}")
            previous = verdict
        raise AssertionError("the last attempt returns")

    def keep(self, plan: Plan) -> None:
        """Write the plan into the job's folder, and find out before the start if nothing can be written there."""
        try:
            (self.folder / "plan.json").write_text(json.dumps(plan.as_data(), indent=1))
        except OSError as error:
            raise MusterError(
                f"{tilde(self.folder)} cannot be written: {(error.strerror or str(error)).lower()}",
                hint="free some space there, or set XDG_STATE_HOME to another folder",
            ) from None

    def on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error nobody caught: show it and end the job, for one that goes on half blind would hang."""
        error = context.get("exception")
        self.screen.show_block("".join(format_exception(error)) if error else context["message"])
        if self._body is not None:
            self._body.cancel()

    def on_signal(self, number: signal.Signals) -> None:
        """End the job."""
        if not self.stopped_by:
            self.signal = signal.Signals(number)
        self.stop(signal.Signals(number).name)

    def on_ctrl_z(self) -> None:
        """A stopped controller would send no heartbeat and so lose its job."""
        self.screen.tell("Ctrl-Z does nothing here: Ctrl-C ends the job")

    def stop(self, why: str) -> None:
        """End the job for a reason that is not in it: in order the first time, at once the second time."""
        if not self.stopped_by:
            self.stopped_by = why
            again = self.attempt is not None and self.grace > 0
            hurry = f" (up to {self.grace:g} s, Ctrl-C again to kill them now)" if again else ""
            self.screen.tell(f"{why}: stopping all ranks{hurry}")
            if self._body is not None:
                self._body.cancel()
        elif self.grace > 0:
            self.grace = 0.0
            self.screen.tell("again: killing all ranks")
            for link in self.links:
                if not link.lost:
                    self._hurrying.append(asyncio.ensure_future(self.stop_host(link)))

    def pass_on(self, number: signal.Signals) -> None:
        """Give a signal to all ranks: `kill -USR1`, or a scheduler that warns the batch script."""
        self.screen.tell(f"{signal.Signals(number).name}: passed on to all ranks")
        for link in self.links:
            if self.attempt is not None and not link.lost:
                self._hurrying.append(asyncio.ensure_future(self.signal_host(link, number)))

    async def signal_host(self, link: AgentLink, number: int) -> None:
        """Give a signal to the ranks of one host; one that is lost has none."""
        try:
            await link.request("signal", limit=5, number=number)
        except LinkLost:
            pass

    # --- before the ranks -----------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Start an agent for every seat, side by side."""
        seats = self.engine.seats
        self.links = [AgentLink(seat, self.on_event, self.on_text) for seat in seats]
        self.leaders = [self.links[position] for position in leaders(seats)]
        scheduler = self.engine.scheduler if isinstance(self.engine, Dialled) else ""
        if self.connector.called:
            self.screen.say(f"connecting to {names(self.connector.called)}")
        self.waiting_for = self.hosts_missing

        def on_failure(error: HostError) -> None:
            self.failed.add(error.host)
            if len(self.links) > 1:  # the others may take their time; this one is known now
                self.screen.tell(error.message)

        await self.connector.connect(self.links, agent_payload(self.job.id, scheduler), CONNECT_LIMIT, on_failure)
        self.timeline.connected = self.timeline.now()

    async def prepare(self) -> Plan:
        """Make the hosts ready to start ranks; imports and the search for addresses go side by side."""
        job, links, screen = self.job, self.leaders, self.screen
        self.waiting_for = lambda: ready.what_is_done(job, len(links))
        if job.preload_reason:
            screen.say(job.preload_reason)
        if job.preload and not screen.is_live:
            screen.say(self.waiting_for())
        plan = ready.plan_for(job, links, nproc=self.nproc, screen=screen)
        if self.only and not any(rank < plan.world_size for rank in self.only):
            raise UsageError(
                f"--only-rank: the job has ranks 0 to {plan.world_size - 1}, none of those named",
                hint="try `--only-rank 0`",
            )
        if job.preload:
            ready.check_torch(links)
        if job.call is not None:
            ready.check_python(job.call, links)
        folders = await ready.sync(job, links, screen) if job.sync else [job.cwd] * len(links)
        folders = await ready.check_code(job, links, folders, screen)
        by_host = dict(zip((link.name for link in links), folders, strict=True))
        beside = [asyncio.ensure_future(ready.import_everywhere(job, self.links, by_host, screen))]
        if job.call is not None:
            beside.append(asyncio.ensure_future(ready.send_call(job.call, self.links, screen)))
        self.lookout.begin(job, links)
        try:
            plan = await meet(job, links, plan, screen)
            await asyncio.gather(*beside)
            await self.lookout.settle()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        self.timeline.imported = self.timeline.now()
        self.waiting_for = None
        return plan

    def hosts_missing(self) -> str:
        """Which hosts are up and which are not."""
        missing = list(dict.fromkeys(link.name for link in self.links if not link.facts))
        up = len(self.leaders) - len(missing)
        said = f" ({self.connector.last_words})" if self.connector.last_words else ""
        waited_for = [name for name in missing if name not in self.failed]
        return f"{up} of {len(self.leaders)} hosts up, waiting for {names(waited_for)}{said}"

    # --- the ranks ------------------------------------------------------------------------------------------

    async def try_once(self, plan: Plan, number: int) -> Verdict:
        """Start all ranks, wait until all have ended or one has failed, then end the rest."""
        attempt = self.attempt = Attempt(plan, number, self.folder, self.screen, self.logs, self.only)
        if number == 0:
            self.screen.say(
                f"{count(plan.world_size, 'rank')} on {count(len(plan.placements), 'host')}, "
                f"meeting at {plan.master_addr}:{plan.master_port}; logs in {tilde(self.folder)}"
            )
        await asyncio.gather(*(self.start(link, plan, number) for link in self.links))
        noticing = asyncio.ensure_future(self.notice_early_ends(attempt))
        try:
            await attempt.over.wait()
        finally:
            noticing.cancel()
        await self.stop_ranks()
        if number == 0 and attempt.first_collective is not None:
            self.timeline.first_collective = attempt.first_collective - self.timeline.begin
        return attempt.verdict()

    async def scheduler_reason(self, *, hit: bool = False) -> str | None:
        """Why the scheduler ended the job, if it did: its words may come a moment after what it does."""
        hit = hit or signal.SIGTERM in self._passed_on or all(link.lost for link in self.links)
        give_up = time.monotonic() + (1.0 if hit else 0.0)
        while self.connector.why_ended() is None and time.monotonic() < give_up:
            await asyncio.sleep(0.05)
        return self.connector.why_ended()

    async def start(self, link: AgentLink, plan: Plan, attempt: int) -> None:
        """Start the ranks of one agent."""
        ranks = plan.named(link.name).ranks if link.seat.rank is None else [link.seat.rank]
        requests = [{"rank": rank, "env": self.rank_env(plan, rank, attempt)} for rank in ranks]
        assert self.attempt is not None
        try:
            answer = await link.request("start", limit=30, ranks=requests)
        except LinkLost as error:
            self.attempt.on_loss(link.name, error.why)
            return
        if "problem" in answer:
            self.attempt.on_loss(link.name, f"its ranks cannot be started: {answer['problem']}")

    def rank_env(self, plan: Plan, rank: int, attempt: int) -> dict[str, str]:
        """The plan's variables for a rank, and over them those of its engine."""
        env = rank_environment(plan, rank, attempt=attempt)
        return {**env, **self.engine.rank_env(plan, rank)} if isinstance(self.engine, Dialled) else env

    async def notice_early_ends(self, attempt: Attempt) -> None:
        """Some ranks ended well long ago and others still run: they may wait for those for ever, so say it once."""
        while not attempt.ended_well:
            await asyncio.sleep(0.5)
        await asyncio.sleep(10)
        if attempt.running:
            ended, running = ranks(attempt.ended_well), ranks(attempt.running)
            self.screen.say(f"{ended} ended with exit code 0 over 10 s ago; {running} still running")

    async def stop_ranks(self) -> None:
        """End whatever still runs on the hosts that are left."""
        await asyncio.gather(*(self.stop_host(link) for link in self.links if not link.lost))

    async def stop_host(self, link: AgentLink) -> None:
        """End the ranks of one host and say so if one cannot be ended."""
        grace = min(self.grace, LAST_GRACE) if self.attempt and self.attempt.losses else self.grace
        try:
            answer = await link.request("stop", limit=grace + 10, grace=grace)
        except LinkLost as error:
            if self.attempt is not None:
                self.attempt.on_loss(link.name, error.why)
            return
        if answer["left"]:
            if self.attempt is not None:
                self.attempt.stuck = True
            pids = ", ".join(map(str, answer["left"]))
            self.screen.tell(f"{link.name}: process {pids} does not die: the kernel holds it (disk or driver)")

    async def end(self) -> None:
        """Leave no process and no connection, whatever state the job is in."""
        self.lookout.end()
        if self.attempt is not None:
            await self.stop_ranks()
        await asyncio.gather(*(link.close(limit=LAST_GRACE + 8) for link in self.links))
        await self.connector.close()

    # --- events ---------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Send heartbeats, and keep the screen honest about what is being waited for."""
        expected = time.monotonic()
        said = self.timeline.now()
        while True:
            late = time.monotonic() - expected
            for link in self.links:
                if late > 1.0:
                    link.excuse(late)
                link.beat()
            if self.screen.closed_by_reader.is_set() and not self.stopped_by:
                self.on_signal(signal.SIGPIPE)
            now = self.timeline.now()
            if self.waiting_for is not None and (self.screen.is_live or now - said > STILL_WAITING):
                said = now
                self.screen.status(f"{self.waiting_for()} ({now:.0f} s)")
            expected = time.monotonic() + HEARTBEAT
            await asyncio.sleep(HEARTBEAT)

    def on_event(self, link: AgentLink, event: dict[str, Any]) -> None:
        """Something happened on a host."""
        kind = event["t"]
        if kind == "silent":
            if link in self.leaders:
                self.screen.tell(f"{link.name} has been silent for {link.silence:.1f} s")
        elif kind == "heard":
            if link in self.leaders:
                self.screen.tell(f"{link.name} is back")
        elif kind == "lost" and link.lost is not None:
            if sum(other.lost is not None for other in self.links if other.name == link.name) == 1:
                self.screen.tell(f"lost {link.lost.message}")
            if self.attempt is not None:
                self.attempt.on_loss(link.name, link.lost.why)
        elif kind == "signal":
            self.on_scheduler_signal(link, signal.Signals(event["number"]))
        elif self.attempt is None:
            pass  # before there are ranks, a lost host or zygote fails what waits for it, or the start
        elif kind == "broken":
            self.attempt.on_loss(link.name, "its zygote was killed")
        else:
            self.attempt.on_event(link, event)

    def on_scheduler_signal(self, link: AgentLink, number: signal.Signals) -> None:
        """A host's ranks were signalled from outside, which all hosts tell within a moment."""
        scheduler = self.engine.scheduler if isinstance(self.engine, Dialled) else ""
        if number not in self._passed_on:
            self._passed_on.add(number)
            self.screen.tell(f"{number.name} from {scheduler or 'outside'} has reached the ranks on {link.name}")

    def on_text(self, source: str, text: str) -> None:
        """A host, or a program that starts agents, wrote a line on stderr outside any rank."""
        self.screen.host_line(source, text)

    # --- the end of it --------------------------------------------------------------------------------------

    def tell_failure(self, verdict: Verdict) -> None:
        """Say which rank failed first and why."""
        self.screen.tell(verdict.sentence)
        self.screen.show_block(verdict.detail)
        for note in verdict.notes:
            self.screen.tell(note)

    def tell_summary(self, verdict: Verdict) -> None:
        """The last line: how it went, and where the time went."""
        code = f", exit code {verdict.exit_code}" if self.job.call is None else ""
        if verdict.ok:
            if self.connector.why_ended():
                self.screen.tell(f"{self.connector.why_ended()}; its ranks ended in good order")
            self.screen.say(f"done after {self.timeline.now():.1f} s ({self.timeline}){code}")
            return
        if self.job.call is None:  # a function's failure is told by the exception it becomes
            self.tell_failure(verdict)
        self.screen.tell(
            f"failed after {self.timeline.now():.1f} s ({self.timeline}){code}; logs in {tilde(self.folder)}"
        )


def run_job(make: Callable[[], Controller]) -> int:
    """Run a controller, made inside it, in a fresh event loop."""

    async def main() -> int:
        controller = make()
        controller.listen_to_signals()
        return (await controller.run()).exit_code

    return asyncio.run(main())

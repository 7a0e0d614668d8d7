"""The controller: one job from its first connection to its last process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from muster.agent.stopping import time_to_stop
from muster.controller import prepare
from muster.controller.agents import Agents
from muster.controller.attempt import Attempt
from muster.controller.attempt_runner import Parts
from muster.controller.debug_log import internal_error, logged
from muster.controller.diagnosis.verdict import Verdict
from muster.controller.draining import Drain
from muster.controller.events import EventStream, Guard
from muster.controller.fetched_results import FetchedResults
from muster.controller.host_blame import HostBlame
from muster.controller.host_events import HostEvents
from muster.controller.keep.kept_agents import KeptAgents
from muster.controller.links.link import LinkLost
from muster.controller.monitor.job_files import JobFiles
from muster.controller.monitor.job_server import JobServer
from muster.controller.monitor.job_status import JobStatus
from muster.controller.monitor.observers import Observers
from muster.controller.monitor.rank_monitor import RankMonitor
from muster.controller.monitor.straggler_monitor import StragglerMonitor
from muster.controller.preparation import Preparation
from muster.controller.recovery import Recovery
from muster.controller.rendezvous import meet
from muster.controller.requeue_watch import WARNING_SIGNAL, RequeueWatch, end_early
from muster.controller.startup_check import Check, StartupCheck
from muster.controller.summary import Timeline, show_attempts, show_summary
from muster.engines.engine import Launch
from muster.errors import EXIT_MUSTER, HostError, MusterError
from muster.job import Job
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.plan import Plan
from muster.shared.wire import HEARTBEAT, LAST_GRACE
from muster.text import names

STILL_WAITING = 5.0
"""Seconds between two status lines where the output is not a terminal."""

_READ_AFTER = 0.02
"""Seconds after which the script is read: the agents have been started and take longer to answer."""


class Controller:
    """Runs one job."""

    def __init__(
        self,
        job: Job,
        *,
        launch: Launch,
        folder: Path,
        screen: Screen,
        logs: LogFiles,
        begin: float,
        check: Check | None = None,
        summary: bool = True,
    ) -> None:
        self.job = job
        self.launch = launch
        self.folder = folder
        self.screen = screen
        self.logs = logs
        self.summary = summary
        """Whether the screen shows how the job ended."""
        self.startup_check = StartupCheck(check, screen.warning)
        self.timeline = Timeline(begin)
        self.events = EventStream(Guard(screen.warning))
        self.agents = Agents(launch, folder, job.spec.lease, on_event=self.events.publish, on_text=screen.host_line)
        self.status = JobStatus(job, launch, begin)
        self.record = JobFiles(self.status, folder, logs)
        kills = job.spec.on_hang == "kill"
        self.monitor = RankMonitor(self.agents, self.status, screen, folder, job.spec.hang_after, kills)
        straggler = StragglerMonitor(self.status, screen)
        self.observers = Observers(self.status, self.record, self.monitor, straggler, self.events)
        self.preparation = Preparation(job, screen, check)
        self.requeue = RequeueWatch(launch.requeue, folder, screen, self.status)
        self.recovery = Recovery(self._parts())
        self.blame = HostBlame(job, launch, self.recovery, screen.warning, self.events.guard, self.ask_gpus)
        self.recovery.after_failure.append(self.blame.after_failure)
        self.hosts = HostEvents(self.agents, self.events, screen, self.recovery)
        self.drain = Drain(job.spec, self.agents, self.status, self.recovery, self.events, screen.warning)
        stacks, drain = self.monitor.take_stacks, self.drain.request
        self.server = JobServer(folder, self.status, screen, stop=self.on_request, drain=drain, take_stacks=stacks)
        self.results = FetchedResults(job, screen)
        self.kept = KeptAgents(job.spec, launch, screen.info)
        self.stopped_by = ""
        """What ended the job from outside: a signal, `muster stop`, a timeout."""
        self.signal: signal.Signals | None = None
        self.to_background: Callable[[], None] | None = None
        self._body: asyncio.Task[Verdict] | None = None
        self._bug = ""  # the internal error that ended the job

    def _parts(self) -> Parts:
        """What the attempts of the job need."""
        return Parts(
            job=self.job,
            agents=self.agents,
            events=self.events,
            status=self.status,
            observers=self.observers,
            record=self.record,
            preparation=self.preparation,
            screen=self.screen,
            logs=self.logs,
            folder=self.folder,
            timeline=self.timeline,
            requeue=self.requeue,
        )

    # --- the whole ------------------------------------------------------------------------------------------

    def listen_to_signals(self) -> None:
        """Handle the signals of this process, which runs only this job."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup and `&` in scripts ignore them
                loop.add_signal_handler(number, self.on_signal, number)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, self.pass_on, number)
        loop.add_signal_handler(signal.SIGTSTP, self.on_ctrl_z)

    async def run(self) -> Verdict:
        """Run the job, answer other commands meanwhile, and return how it ended."""
        with logged(self.job, self.launch, self.folder, self.logs, self.screen):
            try:
                async with self.server:
                    verdict = await self.live()
                    if not verdict.ok and not self.stopped_by:
                        self.status.failed(verdict)
                    self.status.ended(verdict.exit_code, verdict.in_short)
                    return verdict
            except MusterError as error:
                self.status.ended(error.exit_code, error.message)
                raise
            finally:
                self.observers.finish()
                await self.observers.announce_end()

    async def live(self) -> Verdict:
        """The job from start to end; whatever happens, no process is left."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.on_bug)
        self.requeue.begin(lambda: self.pass_on(WARNING_SIGNAL))
        self._body = asyncio.ensure_future(self.body())
        ticking = asyncio.ensure_future(self.tick())
        ticking.add_done_callback(lambda task: task.cancelled() or self.on_bug(loop, {"exception": task.exception()}))
        verdict: Verdict | None = None
        try:
            verdict = await self._body
        except asyncio.CancelledError:
            verdict = Verdict(exit_code=0) if self.requeue.time_is_up else None
        finally:
            self.recovery.waiting_for = None
            await self.end(verdict)
            await self.blame.save()
            ticking.cancel()
        reason = self.agents.connector.why_ended()
        if self.stopped_by:
            is_signal = self.signal is not None and self.stopped_by == self.signal.name
            usual = self.launch.engine.usual_reason(self.signal) if self.signal and is_signal else None
            because = f" ({reason or usual})" if reason or usual else ""
            sentence = f"stopped by {self.stopped_by} after {self.timeline.now():.1f} s{because}"
            show_attempts(self.screen, self.status, f"stopped by {self.stopped_by}")
            self.screen.warning(sentence)
            return self.requeue.after_stop(self.signal, sentence, reason)
        if verdict is None:
            raise MusterError(self._bug or internal_error("the job was canceled"))
        verdict = self.results.add_to(self.requeue.settle(verdict, self.attempt, reason))
        if self.summary and not self.requeue.is_decided:
            show_summary(self.screen, verdict, self.timeline, self.status, self.folder, reason)
        return verdict

    async def body(self) -> Verdict:
        """Connect, prepare, and attempt until there is nothing more to try."""
        try:
            await self.connect()
            plan = await self.prepare()
        except MusterError as error:
            # A scheduler that ends the job kills zygotes too, maybe before it is known that their agents are dead.
            away = any(member.standing == "away" for member in self.recovery.roster.members)
            if isinstance(error, LinkLost) or away or any(link.lost for link in self.agents.links):
                reason = await self.recovery.scheduler_reason(hit=True)
                if reason:
                    raise MusterError(reason) from None
            raise
        return self.blame.add_to(await self.recovery.run(plan))

    async def ask_gpus(self, hosts: Collection[str]) -> dict[str, str]:
        """What is wrong with the GPUs of these hosts, by host."""
        from muster.controller.gpu_questions import failed_gpus  # most jobs do not fail

        return await failed_gpus([link for link in self.agents.leaders if link.name in hosts])

    def on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An uncaught error of Muster: report it and end the job, because a job without its controller would hang."""
        self._bug = internal_error(context.get("exception") or context["message"])
        if self.stopped_by or (self._body is not None and self._body.done()):
            self.screen.warning(self._bug)
        if self._body is not None:
            self._body.cancel()

    def on_signal(self, number: signal.Signals) -> None:
        """End the job; if it seems to hang, after saving stack traces."""
        self.timeline.note(f"received {signal.Signals(number).name}")
        if self.results.interrupt() or self.status.phase == "ended":
            return  # the ranks have ended
        why = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        looks = (
            not self.stopped_by and number == signal.SIGINT and self.recovery.is_running and self.monitor.seems_stuck
        )
        if not self.stopped_by:
            self.signal = signal.Signals(number)
        (self.stop_with_stacks if looks else self.stop)(why)

    def on_request(self, grace: float | None) -> None:
        """End the job as SIGTERM does, for `muster stop`; a second request can only shorten the grace period."""
        if self.results.interrupt():
            return
        if not self.stopped_by:
            self.signal = signal.SIGTERM
            self.recovery.grace = self.recovery.grace if grace is None else grace
            self.stop("muster stop")
        elif grace is not None and grace < self.recovery.grace:
            self.recovery.grace = grace
            self.agents.hurry(grace, self.recovery.on_loss)

    def stop_with_stacks(self, why: str) -> None:
        """End the job after saving the stack traces of its ranks."""
        self.screen.warning(f"{why}: saving stack traces, then stopping all ranks")
        self.monitor.stacks_then(lambda: None if self.stopped_by else self.stop(why))

    def on_ctrl_z(self) -> None:
        """Move to the background, or ignore Ctrl-Z: a stopped controller would send no heartbeats and lose its job."""
        if self.to_background is not None:
            self.to_background()
        else:
            self.screen.warning("Ctrl-Z is ignored; press Ctrl-C to stop the job")

    def stop(self, why: str) -> None:
        """End the job for an outside reason: gracefully the first time, at once the second time."""
        if not self.stopped_by:
            self.stopped_by = self.status.stopped_by = why
            self.status.stopping()
            # After Ctrl-C scripts expect a KeyboardInterrupt, as under python.
            self.recovery.interrupt = self.signal == signal.SIGINT
            again = self.attempt is not None and self.recovery.grace > 0
            sooner = ", Ctrl-C again to kill them now" if self.signal in (signal.SIGINT, None) else ""
            limit = time_to_stop(self.recovery.grace, interrupt=self.recovery.interrupt)
            hurry = f" (up to {limit:g} s{sooner})" if again else ""
            asked = why == "muster stop"  # the line begins with `muster:` already
            said = f"stopping all ranks for `{why}`" if asked else f"{why}: stopping all ranks"
            self.screen.warning(f"{said}{hurry}")
            if self._body is not None:
                self._body.cancel()
        elif self.recovery.grace > 0:
            self.recovery.grace = 0.0
            self.screen.warning(f"{why} again: killing all ranks")
            self.monitor.stacks_then(lambda: self.agents.hurry(0.0, self.recovery.on_loss))

    def pass_on(self, number: signal.Signals) -> None:
        """Forward a signal to all ranks: `kill -USR1`, or the warning signal of a scheduler."""
        warning = self.requeue.on_signal(number, self.attempt, lambda: end_early(self.attempt, self._body))
        self.screen.warning(f"{signal.Signals(number).name}: forwarded to all ranks{warning}")
        if warning and self.requeue.deadline is not None:
            self.drain.announce(self.requeue.deadline, number)
        elif self.attempt is not None:
            self.agents.signal(number)

    # --- before the ranks -----------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Start an agent on every host; a job that can do without some of them begins when the others are up."""
        self.recovery.waiting_for = self.agents.missing
        asyncio.get_running_loop().call_later(_READ_AFTER, lambda: self.preparation.look)
        try:
            await self.agents.connect(self.job.id, self.on_unreachable, kept=self.kept, on_kept=self.on_kept)
        except MusterError:
            if not (self.recovery.is_elastic and self.recovery.roster.enroll()):
                raise
        else:
            self.recovery.roster.enroll()
        self.drain.tick()  # before the ranks start, so that no notice comes too early
        self.status.connected(self.agents.usable)
        self.timeline.connected = self.status.phases["connected"] = self.timeline.note("connected")

    def on_kept(self, hosts: Collection[str]) -> None:
        """The agents of these hosts are up, because an earlier run has left them; the others are being started."""
        called = [name for name in self.agents.connector.called if name not in hosts]
        if called:
            self.screen.info(f"connecting to {names(called)}")

    def on_unreachable(self, error: HostError) -> None:
        """Report a host without an agent while Muster still waits for others."""
        if len(self.agents.links) > 1:
            self.screen.warning(error.message)

    async def prepare(self) -> Plan:
        """Prepare all hosts, and again without those that are lost meanwhile, if the job can do without them.

        Returns the plan of the first attempt.
        """
        while True:
            links = self.agents.usable
            try:
                return await self.prepare_hosts()
            except MusterError:
                is_smaller = any(link.lost for link in links)
                if not (is_smaller and self.recovery.is_elastic and self.recovery.roster.enroll()):
                    raise

    async def prepare_hosts(self) -> Plan:
        """Prepare the hosts that are up; imports and the search for addresses run concurrently."""
        job, screen, is_ready = self.job, self.screen, self.recovery.roster.is_ready
        links = [link for link in self.agents.usable if is_ready(link.name)]
        self.recovery.waiting_for = lambda: prepare.what_is_done(job, len(links))
        prepare.check_slots(job, links, screen)
        plan = self.recovery.first_plan()
        prepare.shown_ranks(plan, job.spec.only_ranks, job.spec.only_local_ranks)
        folders = await self.preparation.check(links)
        if job.preload_reason and (job.spec.debug or not job.preload):  # more imports need no action of the user
            screen.info(job.preload_reason)
        if job.preload and not screen.is_live and not all(link.is_kept for link in links):
            screen.info(prepare.what_is_done(job, len(links)))
        up = [link for link in self.agents.links if link.facts and not link.lost and is_ready(link.name)]
        loading = asyncio.ensure_future(self.preparation.load(up, folders))
        self.startup_check.begin(job, links)
        try:
            used = [self.agents.leader(place.name) for place in plan.placements]
            plan = await meet(job, used, plan, screen)
            await loading
            await self.startup_check.settle()
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        self.timeline.imported = self.timeline.note(f"ready to start ranks, {plan}")
        self.status.phases["imported"] = self.timeline.imported
        self.recovery.waiting_for = None
        return plan

    # --- the end --------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> Attempt | None:
        """The last attempt at running the ranks, if there was one."""
        return self.recovery.attempt

    async def end(self, verdict: Verdict | None) -> None:
        """End all processes and connections, whatever the state of the job; without a `verdict`, it failed."""
        self.startup_check.end()
        recovery = self.recovery
        try:
            await recovery.close()
            if recovery.attempt is not None:
                await recovery.stop_ranks()
                recovery.waiting_for = self.results.progress if self.job.spec.fetch else None
                await self.results.copy(self.results.sources(self.agents, is_elastic=recovery.is_elastic))
        finally:
            recovery.waiting_for = None
            await self.kept.leave(self.agents.links, unusable=self.recovery.stuck)
            await self.agents.close(limit=LAST_GRACE + 8, code=self.exit_code(verdict))

    def exit_code(self, verdict: Verdict | None) -> int:
        """The exit code of the job as far as it is known, for agents that exit with it."""
        if self.stopped_by and self.signal is not None:
            return 128 + self.signal
        return EXIT_MUSTER if self.stopped_by or verdict is None else self.results.add_to(verdict).exit_code

    # --- events ---------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Send heartbeats, and keep the status line up to date."""
        said = self.timeline.now()
        while True:
            self.agents.beat()
            self.drain.tick()
            self.observers.tick(self.agents.links, self.recovery.waiting_for)
            if self.screen.closed_by_reader.is_set() and not self.stopped_by:
                self.on_signal(signal.SIGPIPE)
            now = self.timeline.now()
            if self.recovery.waiting_for is not None and (self.screen.is_live or now - said > STILL_WAITING):
                said = now
                self.screen.status(f"{self.recovery.waiting_for()} ({now:.0f} s)")
            await asyncio.sleep(HEARTBEAT)

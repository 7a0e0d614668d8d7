"""The controller: one job from its first connection to its last process."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muster.agent.wire import HEARTBEAT, LAST_GRACE
from muster.errors import HostError, MusterError
from muster.hosts import Host
from muster.job import Job
from muster.logs.screen import Screen
from muster.plan import Placement, Plan, check_gpus, default_threads, fill_slots, make_plan, rank_environment
from muster.run import addresses, usercode
from muster.run.attempt import Attempt
from muster.run.link import AgentLink, all_or_errors
from muster.run.parcel import agent_payload
from muster.run.verdict import Verdict, is_same_failure
from muster.transports import Command

CONNECT_LIMIT = 60.0
"""Seconds until an agent must have answered: ssh's own 10 s, and a slow home directory."""

IMPORT_LIMIT = 600.0
"""Seconds for the imports: torch from a cold network file system takes minutes."""

LOGINS_AT_ONCE = 32
"""Logins under way at a time: each costs 0.1 s of CPU here, and jump hosts drop callers beyond a limit."""

_PIECE = 1 << 18


@dataclass
class Timeline:
    """When things happened, as seconds since the command started."""

    begin: float
    connected: float | None = None
    imported: float | None = None
    first_collective: float | None = None

    def now(self) -> float:
        """Seconds since the command started."""
        return time.time() - self.begin


class Interrupted(Exception):
    """The user, or a closing terminal, asked for the end."""


class Controller:
    """Runs one job."""

    def __init__(
        self,
        job: Job,
        *,
        transport: Callable[[Host], Command],
        nproc: int | None,
        folder: Path,
        screen: Screen,
        only: Collection[int] | None,
        begin: float,
    ) -> None:
        self.job = job
        self.transport = transport
        self.nproc = nproc
        self.folder = folder
        self.screen = screen
        self.only = only
        self.timeline = Timeline(begin)
        self.links: list[AgentLink] = []
        self.attempt: Attempt | None = None
        self.phase = ""
        self.grace = job.grace
        self.signal: signal.Signals | None = None
        self._body: asyncio.Task[Verdict] | None = None
        self._cwd = job.cwd
        self._master: AgentLink | None = None

    # --- the whole ------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Run the job and return the exit code; whatever happens, no process of it is left."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.on_signal, number)
        # A stopped controller sends no heartbeat and so would lose its job.
        loop.add_signal_handler(signal.SIGTSTP, self.screen.tell, "Ctrl-Z does nothing here: the job ends with Ctrl-C")
        self._body = asyncio.ensure_future(self.body())
        ticking = asyncio.ensure_future(self.tick())
        try:
            verdict = await self._body
        except asyncio.CancelledError:
            verdict = None
        finally:
            ticking.cancel()
            await self.end()
        if verdict is None:
            assert self.signal is not None
            self.screen.tell(f"stopped by {self.signal.name} after {self.timeline.now():.1f} s; no rank is left")
            return 128 + self.signal
        self.summary(verdict)
        return verdict.exit_code

    async def body(self) -> Verdict:
        """Connect, prepare, and attempt until there is nothing more to try."""
        await self.connect()
        plan = self.make_plan()
        await self.check_code()
        preparing = asyncio.ensure_future(self.prepare(plan))
        try:
            plan = await self.meet(plan)
            await preparing
        finally:
            preparing.cancel()
        (self.folder / "plan.json").write_text(json.dumps(plan_as_data(plan), indent=1))
        previous: Verdict | None = None
        for number in range(self.job.restarts + 1):
            if number:
                plan = await self.fresh_port(plan)
            verdict = await self.try_once(plan, number)
            if verdict.ok or not verdict.can_restart or number == self.job.restarts:
                return verdict
            if previous is not None and is_same_failure(previous, verdict):
                note = "the same failure came back at the same place without any progress, so it is not tried again"
                return replace(verdict, notes=(*verdict.notes, note))
            self.tell_failure(verdict)
            self.screen.tell(f"restart {number + 1} of {self.job.restarts}")
            previous = verdict
        raise AssertionError("unreachable")

    def on_signal(self, number: signal.Signals) -> None:
        """End the job: in order the first time, at once the second time."""
        if self.signal is None:
            self.signal = signal.Signals(number)
            self.screen.tell(f"{self.signal.name}: stopping all ranks" + self.grace_words())
            if self._body is not None:
                self._body.cancel()
        elif self.grace > 0:
            self.grace = 0.0
            self.screen.tell("again: killing all ranks")
            for link in self.links:
                if not link.lost:
                    asyncio.ensure_future(self.stop_host(link))

    def grace_words(self) -> str:
        """How long ranks may take to end."""
        return f" (up to {self.grace:g} s, Ctrl-C again to kill them now)" if self.grace > 0 and self.attempt else ""

    # --- before the ranks -----------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Start an agent on every host, side by side."""
        hosts = self.job.hosts
        self.links = [AgentLink(self.transport(host), self.on_event, self.on_text) for host in hosts]
        payload = agent_payload(self.job.id)
        logins = asyncio.Semaphore(LOGINS_AT_ONCE)
        over_ssh = [link.name for link in self.links if link.command.over_ssh]
        if over_ssh:
            self.screen.say(f"connecting to {_names(over_ssh)}")
        self.phase = "connecting"

        async def open_one(link: AgentLink) -> None:
            async with logins:
                await link.open(payload, CONNECT_LIMIT)

        await all_or_errors([open_one(link) for link in self.links])
        self.timeline.connected = self.timeline.now()

    def make_plan(self) -> Plan:
        """Place the ranks, now that the hosts have said what they have."""
        hosts: list[Host] = []
        threads: list[int] = []
        for link in self.links:
            gpus = _visible(self.job.env, link.facts["gpus"])
            host = fill_slots(link.command.host, nproc=self.nproc, gpus=gpus)
            check_gpus(host, gpus)
            if link.command.host.slots is None and self.nproc is None and gpus == 0:
                self.screen.say(f"{link.name} has no GPU: one rank there (`--nproc N` for more)")
            hosts.append(host)
            said = "OMP_NUM_THREADS" in {**self.job.carried, **self.job.env} or link.facts["omp"] is not None
            threads.append(0 if said else default_threads(link.facts["cpus"], host.slots or 1))
        self.check_torch()
        return make_plan(
            self.job.id, hosts, threads=threads, restarts=self.job.restarts, user_env={**self.job.carried, **self.job.env}
        )

    def check_torch(self) -> None:
        """Every host must have torch, and the same one."""
        if not self.job.preload:
            return
        for link in self.links:
            if link.facts["torch"] is None:
                raise HostError(
                    link.name,
                    f"{link.facts['python']} has no torch",
                    hint="name the Python that has it: `--python PATH`",
                )
        versions = {link.facts["torch"] for link in self.links}
        if len(versions) > 1:
            have = ", ".join(f"{link.name} has {link.facts['torch']}" for link in self.links)
            raise MusterError(
                f"the hosts have different versions of torch: {have}",
                hint="install the same version everywhere, or name the right Python with `--python PATH`",
            )

    async def check_code(self) -> None:
        """Every host must have the script as it is here; --sync brings it there first."""
        script = usercode.find_script(self.job)
        if self.job.sync:
            await self.sync()
        fields = {
            "cwd": self._cwd,
            "script": script.path if script else None,
            "digest": script.digest if script else None,
        }
        answers = await all_or_errors([link.request("compare", limit=30, **fields) for link in self.links])
        for link, answer in zip(self.links, answers, strict=True):
            hint = "`--sync` sends this folder to every host before the start"
            if not answer["cwd"]:
                raise HostError(link.name, f"there is no folder {self._cwd}", hint=hint)
            if answer["script"] == "missing":
                raise HostError(link.name, f"{self.job.target} is not in {self._cwd}", hint=hint)
            if answer["script"] == "different":
                raise HostError(link.name, f"its {self.job.target} differs from the one here", hint=hint)

    async def sync(self) -> None:
        """Send the working directory to every host, into the job's folder there."""
        data = usercode.archive(self.job.cwd)
        self.screen.say(f"sending {self.job.cwd} ({len(data) / 1e6:.1f} MB) to {_names([link.name for link in self.links])}")
        pieces = [base64.b64encode(data[at : at + _PIECE]).decode() for at in range(0, max(len(data), 1), _PIECE)]

        async def send(link: AgentLink) -> str:
            answer: dict[str, Any] = {}
            for number, piece in enumerate(pieces):
                answer = await link.request("unpack", limit=60, piece=piece, last=number == len(pieces) - 1)
            if "problem" in answer:
                raise HostError(link.name, f"the code cannot be written there: {answer['problem']}")
            return answer["folder"]

        folders = await all_or_errors([send(link) for link in self.links])
        if len(set(folders)) > 1:
            raise MusterError(
                f"the job's folder has different paths on the hosts: {', '.join(sorted(set(folders)))}",
                hint="set XDG_STATE_HOME to the same path on all of them",
            )
        self._cwd = folders[0]

    async def prepare(self, plan: Plan) -> None:
        """Start every host's zygote and wait for its imports."""

        async def prepare_one(link: AgentLink, placement: Placement) -> None:
            env = {**(self.job.carried if link.command.over_ssh else {}), **self.job.env}
            answer = await link.request(
                "prepare",
                limit=IMPORT_LIMIT,
                env=env,
                cwd=self._cwd,
                preload=list(self.job.preload),
                module=self.job.module,
                target=self.job.target,
                grace=self.job.grace,
            )
            if answer.get("t") == "broken":
                self.screen.show_block(answer["traceback"])
                where = f"importing {answer['module']} failed: " if answer["module"] else ""
                raise HostError(link.name, f"{where}{answer['error']}", hint="`--no-zygote` starts ranks without preloading")
            if answer["unsafe"]:
                self.screen.say(f"{link.name}: {answer['unsafe']}, so ranks start as fresh interpreters")

        self.phase = "importing"
        await all_or_errors([prepare_one(link, place) for link, place in zip(self.links, plan.placements, strict=True)])
        self.timeline.imported = self.timeline.now()

    async def meet(self, plan: Plan) -> Plan:
        """Find, by trying, where every host reaches rank 0, and hold a free port there."""
        nonces = [secrets.token_hex(8) for _ in self.links]
        port = self.job.master_port or 0
        answers = await all_or_errors(
            [
                link.request("listen", limit=15, port=port if number == 0 else 0, nonce=nonces[number])
                for number, link in enumerate(self.links)
            ]
        )
        offers: list[addresses.Offer] = []
        for link, nonce, answer in zip(self.links, nonces, answers, strict=True):
            if "problem" in answer:
                raise _port_taken(link.name, port, answer)
            offers.append(
                addresses.Offer(
                    name=link.name,
                    interfaces=link.facts["interfaces"],
                    own_name=answer["own_name"],
                    port=answer["port"],
                    nonce=nonce,
                )
            )
        meeting = await self.try_addresses(offers)
        held = await all_or_errors(
            [link.request("hold", limit=10, keep=number == 0) for number, link in enumerate(self.links)]
        )
        self._master = self.links[0]
        for name, interface in meeting.interfaces.items():
            self.screen.say(f"{name}: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME are {interface} ({meeting.reasons[name]})")
        user_env = {**self.job.carried, **self.job.env}
        placements = [_with_interface(place, meeting.interfaces.get(place.name), user_env) for place in plan.placements]
        return replace(
            plan, placements=tuple(placements), master_addr=meeting.master_addr, master_port=held[0]["port"]
        )

    async def try_addresses(self, offers: Sequence[addresses.Offer]) -> addresses.Meeting:
        """Have the hosts dial each other and choose from what they found."""
        interface, master = self.job.interface, self.job.master_addr
        if len(offers) == 1:
            return addresses.alone(offers[0], master=master, interface=interface)
        plans = [
            addresses.dial_targets(offers, peers, interface=interface, master=master)
            for peers in addresses.who_dials_whom(len(offers))
        ]
        answers = await all_or_errors(
            [link.request("dial", limit=20, targets=targets) for link, targets in zip(self.links, plans, strict=True)]
        )
        tried = {link.name: answer["results"] for link, answer in zip(self.links, answers, strict=True)}
        return addresses.choose(offers, tried, interface=interface, master=master)

    async def fresh_port(self, plan: Plan) -> Plan:
        """A new port for a restart: the old one may still be busy with the last attempt's connections."""
        assert self._master is not None
        port = self.job.master_port or 0
        answer = await self._master.request("hold", limit=10, keep=False, fresh=True, fresh_port=port)
        if "problem" in answer:
            raise _port_taken(self._master.name, port, answer)
        return replace(plan, master_port=answer["port"])

    # --- the ranks ------------------------------------------------------------------------------------------

    async def try_once(self, plan: Plan, number: int) -> Verdict:
        """Start all ranks, wait until all have ended or one has failed, then end the rest."""
        attempt = self.attempt = Attempt(plan, number, self.folder, self.screen, self.only)
        self.phase = ""
        if number == 0:
            self.screen.say(
                f"{_count(plan.world_size, 'rank')} on {_count(len(plan.placements), 'host')}, "
                f"meeting at {plan.master_addr}:{plan.master_port}; logs in {self.folder}"
            )

        async def start(link: AgentLink, placement: Placement) -> None:
            ranks = [
                {
                    "rank": rank,
                    "env": {**rank_environment(plan, rank, attempt=number)},
                    "target": self.job.target,
                    "module": self.job.module,
                    "args": list(self.job.args),
                }
                for rank in placement.ranks
            ]
            await link.request("start", limit=30, ranks=ranks)

        try:
            await all_or_errors([start(link, place) for link, place in zip(self.links, plan.placements, strict=True)])
        except HostError as error:
            attempt.on_loss(error.host, error.message)
        noticing = asyncio.ensure_future(self.notice_early_ends(attempt))
        try:
            await attempt.over.wait()
        finally:
            noticing.cancel()
        await self.stop_ranks()
        if number == 0 and attempt.first_collective is not None:
            self.timeline.first_collective = attempt.first_collective - self.timeline.begin
        return attempt.verdict()

    async def notice_early_ends(self, attempt: Attempt) -> None:
        """Some ranks ended well long ago and others still run: they may wait for those for ever, so say it once."""
        while not attempt.ended_well:
            await asyncio.sleep(0.5)
        await asyncio.sleep(10)
        if attempt.running:
            ended, running = _ranks(attempt.ended_well), _ranks(attempt.running)
            self.screen.say(f"{ended} ended with exit code 0 over 10 s ago; {running} still running")

    async def stop_ranks(self) -> None:
        """End whatever still runs on the hosts that are left."""
        await asyncio.gather(*(self.stop_host(link) for link in self.links if not link.lost))

    async def stop_host(self, link: AgentLink) -> None:
        """End the ranks of one host and say so if one cannot be ended."""
        grace = min(self.grace, LAST_GRACE) if self.attempt and self.attempt.losses else self.grace
        try:
            answer = await link.request("stop", limit=grace + 10, grace=grace)
        except HostError as error:
            if self.attempt is not None:
                self.attempt.on_loss(error.host, error.message)
            return
        if answer["left"]:
            pids = ", ".join(map(str, answer["left"]))
            self.screen.tell(f"{link.name}: process {pids} does not die: the kernel holds it (disk or driver)")

    async def end(self) -> None:
        """Leave no process and no connection, whatever state the job is in."""
        if self.attempt is not None:
            await self.stop_ranks()
        await asyncio.gather(*(link.close(limit=LAST_GRACE + 8) for link in self.links))

    # --- events ---------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Send heartbeats, and keep the screen honest about what is being waited for."""
        expected = time.monotonic()
        said = 0.0
        while True:
            late = time.monotonic() - expected
            for link in self.links:
                if late > 1.0:
                    link.excuse(late)
                link.beat()
            if self.screen.closed_by_reader.is_set() and self.signal is None:
                self.on_signal(signal.SIGPIPE)
            waited = self.timeline.now() - said
            if self.phase and (self.screen.is_live or waited > 5.0):
                said = self.timeline.now()
                self.screen.status(self.waiting_for())
            expected = time.monotonic() + HEARTBEAT
            await asyncio.sleep(HEARTBEAT)

    def waiting_for(self) -> str:
        """What stands between now and the first rank."""
        seconds = f"{self.timeline.now():.0f} s"
        if self.phase == "importing":
            return f"importing {', '.join(self.job.preload) or 'nothing'} on {_count(len(self.links), 'host')} ({seconds})"
        missing = [link.name for link in self.links if not link.facts]
        return f"{len(self.links) - len(missing)} of {len(self.links)} hosts up, waiting for {_names(missing)} ({seconds})"

    def on_event(self, link: AgentLink, event: dict[str, Any]) -> None:
        """Something happened on a host."""
        kind = event["t"]
        if kind == "silent":
            self.screen.tell(f"{link.name} has been silent for {link.silence:.1f} s")
        elif kind == "heard":
            self.screen.tell(f"{link.name} is back")
        elif kind == "lost":
            assert link.lost is not None
            self.screen.tell(f"lost {link.lost.message}")
            if self.attempt is not None:
                self.attempt.on_loss(link.name, link.lost.message.partition(": ")[2])
        elif kind == "broken":
            if self.attempt is not None:
                self.attempt.on_loss(link.name, "its zygote was killed")
        elif self.attempt is not None:
            self.attempt.on_event(link, event)

    def on_text(self, link: AgentLink, text: str) -> None:
        """A host wrote on stderr outside any rank."""
        for line in text.splitlines():
            if line.strip():
                self.screen.host_line(link.name, line)

    # --- the end of it --------------------------------------------------------------------------------------

    def tell_failure(self, verdict: Verdict) -> None:
        """Say which rank failed first and why."""
        self.screen.tell(verdict.sentence)
        self.screen.show_block(verdict.detail)
        for note in verdict.notes:
            self.screen.tell(note)

    def summary(self, verdict: Verdict) -> None:
        """The last line: how it went, and where the time went."""
        if not verdict.ok:
            self.tell_failure(verdict)
        line = self.timeline
        parts = [
            f"{name} {seconds:.1f} s"
            for name, seconds in (
                ("connected", line.connected),
                ("imported", line.imported),
                ("first collective", line.first_collective),
            )
            if seconds is not None
        ]
        result = "done" if verdict.ok else "failed"
        text = f"{result} after {line.now():.1f} s ({', '.join(parts)}), exit code {verdict.exit_code}"
        if verdict.ok:
            self.screen.say(text)
        else:
            self.screen.tell(f"{text}; logs in {self.folder}")


def plan_as_data(plan: Plan) -> dict[str, Any]:
    """The plan as it is kept in the job's folder."""
    return {
        "job": plan.job_id,
        "world_size": plan.world_size,
        "master": f"{plan.master_addr}:{plan.master_port}",
        "hosts": [
            {"host": str(place.host), "ranks": list(place.ranks), "threads": place.threads, "env": dict(place.env)}
            for place in plan.placements
        ],
    }


def _with_interface(placement: Placement, interface: str | None, user_env: Any) -> Placement:
    if interface is None:
        return placement
    names = [name for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name not in user_env]
    return replace(placement, env={**placement.env, **dict.fromkeys(names, interface)})


def _visible(env: Any, gpus: int) -> int:
    """How many of a host's GPUs its ranks see, if the user says so with --env."""
    from muster.agent.machine import gpu_count

    return min(gpus, gpu_count(env)) if "CUDA_VISIBLE_DEVICES" in env else gpus


def _port_taken(host: str, port: int, answer: dict[str, Any]) -> HostError:
    owner = f" by {answer['owner']}" if answer.get("owner") else ""
    return HostError(
        host,
        f"port {port} cannot be used, it is taken{owner} ({answer['problem'].lower()})",
        hint="leave --master-port out: Muster then finds a free one",
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:6])} and {len(names) - 6} more"


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + _names([str(rank) for rank in ranks])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def run_job(controller_of: Callable[[], Controller]) -> int:
    """Run a controller in a fresh event loop."""

    async def main() -> int:
        return await controller_of().run()

    return asyncio.run(main())

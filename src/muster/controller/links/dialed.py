"""Agents that dial back: the TLS port, the start commands, and matching connections to agents."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from muster.agent.connectivity import free_port
from muster.controller.diagnosis.verdict import signal_name
from muster.controller.links.admission import Admission
from muster.controller.links.all_or_errors import all_or_errors
from muster.controller.links.certificate import make_server_context
from muster.controller.links.child_process import Child
from muster.controller.links.dial_order import order_text, token_of
from muster.controller.links.dialed_line import DialedLine
from muster.controller.links.link import AgentLink
from muster.controller.links.open_files import require, start_hint
from muster.controller.links.piped import Output
from muster.engines.container.container import PULL_LIMIT, pull_in, too_slow_pull
from muster.engines.engine import ORDER_FILE, Launch, StartCommand
from muster.errors import HostError, MusterError
from muster.shared.events import HELLO
from muster.shared.machine import interfaces
from muster.shared.protocol import validate
from muster.shared.wire import ProtocolError, check_version, decode
from muster.text import names

_END_LIMIT = 1.0
"""Seconds for a start command to exit by itself after its agents have exited."""

_TERM_LIMIT = 5.0
"""Seconds for it to exit after SIGTERM; mpirun stops its daemons first, which would survive its SIGKILL."""

_TERM_LIMIT_AFTER_LOSS = 1.0
"""The same if a host is lost, for which some launchers would wait for minutes."""


_REASON_LIMIT = 1.0
"""Seconds for the scheduler's reason after a sign that it has ended the job."""

_LAST_LINES_LIMIT = 8.0
"""The same once all agents have ended; srun itself waits up to 7 s for a step to finish."""


class NobodyCame(HostError):
    """An agent did not connect in time, and the cause is unknown."""


class Caller:
    """A start command's running process, and its output."""

    def __init__(self, command: StartCommand, connector: DialedConnector, env: dict[str, str]) -> None:
        self.command = command
        self.reason: str | None = None
        """Why the scheduler ended its agents, if it said so."""
        self.is_quiet = False
        """Whether its output is not shown, because its host is lost."""
        self._connector = connector
        self.is_over = False
        self.ended: set[str] = set()
        """The hosts whose agents have ended, as its output says."""
        self._words = Output(lambda line: connector.on_line(self, line))
        self._ending: asyncio.Task[None] | None = None
        try:
            self._child = Child(
                command.argv, on_data=self._words.feed, on_words=self._words.feed, on_closed=self._on_closed, env=env
            )
        except OSError as error:
            raise MusterError(
                f"could not start `{command.argv[0]}` ({error.strerror})",
                hint=start_hint(error, connector.launch.engine.program_hint(command)),
            ) from None

    def _on_closed(self) -> None:
        self._ending = asyncio.ensure_future(self._explain_end())

    async def _explain_end(self) -> None:
        code = await self._child.exit_code(_END_LIMIT)
        self.is_over = code is not None
        self.give_up(code)
        if not any(link.closing for link in self.links):
            self._connector.on_end(self.command, code)

    def give_up(self, code: int | None = None) -> None:
        """Fail the agents that have not connected, with an explanation from the output so far."""
        missing = [link for link in self.links if not link.is_attached]
        if missing and not missing[0].closing:
            error = self._connector.launch.engine.explain(self.command, code, self._words.text.strip())
            for link in missing:
                link.fail(error)

    def allow_pull(self, line: str) -> None:
        """Wait longer for all its agents if a host is pulling an image; they start together or not at all."""
        pull = pull_in(line)
        if pull is not None:
            for link in self.links:
                link.allow(PULL_LIMIT, too_slow_pull(*pull))

    @property
    def links(self) -> list[AgentLink]:
        """The links of its agents; a link to an agent that is started again takes precedence."""
        links = (*self._connector.returning, *self._connector.links)
        return [link for link in links if link.spec in self.command.agents][: len(self.command.agents)]

    def note_helpers(self) -> None:
        """Record its descendants on this machine; mpirun's ssh clients survive it if their host is dead."""
        self._child.note_descendants()

    async def end(self) -> None:
        """Wait briefly for it to exit by itself, as it does after its agents have exited, then end it."""
        self.note_helpers()
        lost = any(link.lost for link in self.links)
        if lost or await self._child.exit_code(_END_LIMIT) is None:
            await self._child.terminate(_TERM_LIMIT_AFTER_LOSS if lost else _TERM_LIMIT)
        self._child.close(kill=True)
        self._child.kill_descendants()


class Awaited(Caller):
    """Agents that others start; they dial in by themselves."""

    def __init__(self, command: StartCommand, connector: DialedConnector) -> None:
        self.command = command
        self.reason = None
        self.is_quiet = False
        self.is_over = False
        self.ended = set()
        self._connector = connector

    def note_helpers(self) -> None:
        """There is no process of ours."""

    async def end(self) -> None:
        """There is nothing to end."""


class DialedConnector:
    """Starts agents that dial back, because their launcher gives them no stdin."""

    def __init__(self, launch: Launch, folder: Path, on_text: Callable[[str, str], None]) -> None:
        self.launch = launch
        self.links: Sequence[AgentLink] = ()
        self.returning: list[AgentLink] = []
        """Links to agents that are being started again; those before them in `links` are lost."""
        self.payload = b""
        self.called = list(dict.fromkeys(agent.name for agent in launch.agents))
        self.last_words = ""
        """The last output of the start commands while agents are missing."""
        self._folder = folder
        self._on_text = on_text
        known = launch.known_port
        self._secret = known.secret if known is not None else ""
        self._token = token_of(known.secret) if known is not None else secrets.token_hex(32)
        self.known: Counter[str] = Counter()
        """How many agents have connected from each address."""
        self._admission: Admission | None = None
        self._callers: list[Caller] = []
        self._order_text = ""
        self._why_ended: str | None = None

    async def connect(
        self, links: Sequence[AgentLink], payload: bytes, limit: float, on_failure: Callable[[HostError], None]
    ) -> None:
        """Open the port, run the start commands, and wait until every agent has connected."""
        self.links, self.payload = links, payload
        require(len(links) + 3 * len(self.launch.commands))
        context, certificate = make_server_context(self._secret)
        sock = self._listen()
        self._admission = Admission(
            sock, context, lambda: DialedLine(self), lambda: len(self.links), self.known.__getitem__
        )
        self._order_text = self._order(sock.getsockname()[1], certificate, limit)
        for command in self.launch.commands:
            self._callers.append(self._start(command))
        if self.launch.pull_limit:
            self.last_words = "hosts that do not have the image pull it first"
        if self.launch.can_lack_hosts:
            await self._each_up(max(limit, self.launch.pull_limit), on_failure)
        else:
            await self._all_up(max(limit, self.launch.pull_limit))
        for caller in self._callers:
            caller.note_helpers()

    def _listen(self) -> socket.socket:
        """The socket of the port: any free one, or the one that agents know."""
        known = self.launch.known_port
        try:
            return free_port(known.port if known is not None else 0)
        except OSError as error:
            raise MusterError(
                f"could not open port {known.port if known is not None else 0} ({error.strerror})",
                hint="another program of this pod uses it; set PET_MASTER_PORT to a free port in all pods",
            ) from None

    def _order(self, port: int, certificate: str, limit: float) -> str:
        """Everything that an agent needs to connect, including the code for it."""
        engine = self.launch.engine
        return order_text(
            addresses=_own_addresses(),
            port=port,
            certificate=certificate,
            token=self._token,
            key_from=engine.key_from,
            killed_at_once=engine.killed_at_once,
            limit=limit / 2,
        )

    def _start(self, command: StartCommand) -> Caller:
        if not command.argv:
            return Awaited(command, self)
        order = self._order_text
        env = {name: value for name, value in os.environ.items() if name not in self.launch.engine.unset}
        if ORDER_FILE not in command.argv:
            return Caller(command, self, {**env, "MUSTER_DIAL": order})
        path = self._folder / "order.json"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(order)
        argv = tuple(str(path) if word == ORDER_FILE else word for word in command.argv)
        return Caller(replace(command, argv=argv), self, env)

    async def connect_one(self, link: AgentLink, command: StartCommand, payload: bytes, limit: float) -> None:
        """Start an agent again on one host that was lost or could not be reached before."""
        for caller in [caller for caller in self._callers if caller.command.agents == command.agents]:
            self._callers.remove(caller)
            caller.is_quiet = True
            await caller.end()
        self.payload = payload
        self.returning.append(link)
        caller = self._start(command)
        caller.is_quiet = True
        self._callers.append(caller)
        try:
            await link.came_up(limit, self._nobody_came([link], limit))
            caller.is_quiet = False
        except BaseException:
            self._callers.remove(caller)
            await caller.end()
            raise
        finally:
            self.returning.remove(link)

    async def _each_up(self, limit: float, on_failure: Callable[[HostError], None]) -> None:
        """Wait for every agent, although some do not come up; raises all failures together at the end."""

        async def up(link: AgentLink) -> None:
            try:
                await link.came_up(limit, self._nobody_came([link], limit))
            except MusterError as error:
                failure = (
                    error if isinstance(error, HostError) else HostError(link.name, error.message, hint=error.hint)
                )
                on_failure(failure)
                raise failure from None

        await all_or_errors([up(link) for link in self.links])

    async def _all_up(self, limit: float) -> None:
        waiting = [asyncio.ensure_future(link.came_up(limit, self._nobody_came([link], limit))) for link in self.links]
        try:
            # The first failure ends the wait: with these engines, one missing agent makes the whole start fail.
            await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            failed = [task for task in waiting if task.done() and task.exception() is not None]
            if failed and isinstance(failed[0].exception(), NobodyCame):
                raise self._nobody_came([link for link in self.links if not link.facts], limit)
            if failed:
                await all_or_errors([failed[0]])
        finally:
            for task in waiting:
                task.cancel()

    def _nobody_came(self, missing: Sequence[AgentLink], limit: float) -> NobodyCame:
        command = next(command for command in self.launch.commands if missing[0].spec in command.agents)
        hint = self.launch.engine.missing_hint or (
            f"check that the hosts are up and that no firewall blocks {' or '.join(_own_addresses())}"
        )
        if self._admission is not None and self._admission.is_out_of_room:
            hint = "this machine allows no more open files: raise `ulimit -n`, or close other programs"
        return NobodyCame(
            names(list(dict.fromkeys(link.name for link in missing))),
            f"no agent connected within {limit:.0f} s" + (f" of starting `{command.program}`" if command.argv else ""),
            hint=hint,
        )

    def give_stdin(self) -> bool:
        """Agents that dial back cannot inherit stdin."""
        return False

    def admit(self, line: bytes) -> tuple[AgentLink | None, bool]:
        """The link of the agent that sent this hello, and whether it resumes; no link to reject the connection."""
        try:
            hello = decode(line)
            validate(hello, HELLO)
        except ProtocolError:  # anyone who can reach the port can send anything
            return None, False
        token, key = str(hello["token"]), str(hello["key"])
        if not hmac.compare_digest(token.encode(errors="replace"), self._token.encode()):
            return None, False
        try:
            check_version(hello["protocol"], "an agent there")
        except ProtocolError as error:
            self._on_text(hello["host"], f"{error}; connection rejected")
            return None, False
        links = (*self.returning, *self.links)
        if "resume" in hello:
            return next((link for link in links if link.lines.name == hello["resume"]), None), True
        free = [link for link in links if link.spec.key == key and not link.is_attached and not link.closing]
        if not free:
            self._on_another(links, key)
        if free:
            wrong = self.launch.engine.misplaced(free[0].spec, str(hello["host"]), self.launch.agents)
            if wrong is not None:
                free[0].fail(wrong)
            return (None if wrong is not None else free[0]), False
        if not self._is_awaited(key) and not any(link.closing for link in self.links):  # late agents are normal then
            self._on_text(hello["host"], f"rejected an agent with the unexpected key `{key}`")
        return None, False

    def _is_awaited(self, key: str) -> bool:
        """Whether the agent with this key is started by others, who may start another one in its place."""
        return any(agent.key == key for command in self.launch.commands if not command.argv for agent in command.agents)

    def _on_another(self, links: Sequence[AgentLink], key: str) -> None:
        """Another agent in the place of one whose connection broke: that one is gone. The new one dials again."""
        for link in links:
            if link.spec.key == key and self._is_awaited(key) and link.lines.line is None and not link.lost:
                link.lose("its agent was started again")

    def on_line(self, caller: Caller, line: str) -> None:
        """A start command has printed a line."""
        caller.ended.update(self.launch.engine.ended_agents(line))
        killed = self.launch.engine.killed_agent(line)
        if killed is not None:
            for link in caller.links:
                if link.spec.key == killed[0]:
                    link.killed = f"its agent was killed by {signal_name(killed[1])}"
        reason = self.launch.engine.why_ended(line)
        if reason is not None:
            caller.reason = reason
            if not self.launch.can_lack_hosts or all(other.reason for other in self._callers):
                self._why_ended = reason
        elif all(link.facts for link in (caller.links if caller.is_quiet else self.links)):
            if not caller.is_quiet and not self.links[0].closing:
                self._on_text(caller.command.program, line)
        else:
            self.last_words = line
            caller.allow_pull(line)
            if self.launch.engine.is_final(line):
                caller.give_up()

    def has_ended(self, link: AgentLink) -> bool:
        """Whether the start command of an agent has ended, or says that the agent has."""
        callers = [caller for caller in self._callers if link.spec in caller.command.agents]
        over = any(caller.is_over or link.spec.host.name in caller.ended for caller in callers[-1:])
        return over or bool(link.killed)

    def on_end(self, command: StartCommand, code: int | None) -> None:
        """A start command has exited before the end of the job."""
        if any(link.killed for link in self.links):
            return  # it has ended the others because of this one, whose loss is reported
        self._why_ended = self._why_ended or self.launch.engine.why_over(command, code)

    def why_ended(self) -> str | None:
        """Why the scheduler ended the job, if it did."""
        return self._why_ended

    def may_explain(self, waited: float) -> bool:
        """Whether to wait longer for the scheduler's reason; srun prints it last, after all agents have ended."""
        if self._why_ended is not None or all(caller.is_over for caller in self._callers):
            return False
        return waited < (_LAST_LINES_LIMIT if all(map(self.has_ended, self.links)) else _REASON_LIMIT)

    async def close(self) -> None:
        """Close the port and end the start commands, after the agents have exited."""
        if self._admission is not None:
            self._admission.close()
        await asyncio.gather(*(caller.end() for caller in self._callers))
        (self._folder / "order.json").unlink(missing_ok=True)


def _own_addresses() -> list[str]:
    """The addresses of this machine; loopback comes last, for agents on this machine."""
    found = sorted(interfaces(), key=lambda interface: interface["loopback"])
    return [address for interface in found for address in interface["addresses"]]

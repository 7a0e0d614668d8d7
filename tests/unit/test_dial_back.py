"""Agents that dial back: real TLS over loopback, real agents started by a small program instead of srun."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moving_time import move_on
from waiting import wait_until_async

from muster.agent import dial_back
from muster.controller.links.agent_package import agent_payload
from muster.controller.links.certificate import make_server_context
from muster.controller.links.dialed import DialedConnector
from muster.controller.links.link import AgentLink
from muster.engines.engine import ORDER_FILE, AgentSpec, Choice, Engine, Launch, StartCommand
from muster.engines.kubernetes.job_engine import KubernetesJobEngine
from muster.errors import MusterError
from muster.hosts import Host
from muster.shared.wire import HEARTBEAT, VERSION
from muster.spec import RunSpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux")

AGENT = (sys.executable, "-c", dial_back.COMMAND)


def spec(key: str) -> AgentSpec:
    return AgentSpec(host=Host(name=key), name=key, key=key)


class DialingEngine(Engine):
    """Its agents find their key in the variable SEAT, or as a word of the command line."""

    name = "test"
    key_from = ("SEAT",)

    def launch(self, choice: Choice, spec: RunSpec, folder: str) -> Launch:
        raise AssertionError("the tests make their own launches")

    def explain(self, command: StartCommand, code: int | None, text: str) -> MusterError:
        return MusterError(f"{command.agents[0].name}: code {code}: {text}")

    def why_ended(self, line: str) -> str | None:
        return "the scheduler ended it" if line == "the end" else None


def launch(*argvs: tuple[str, ...], keys: tuple[str, ...] = ("a", "b")) -> Launch:
    """One command for each agent."""
    commands = tuple(StartCommand(argv=argv, agents=(spec(key),)) for argv, key in zip(argvs, keys, strict=True))
    return Launch(engine=DialingEngine(), commands=commands, channel="dial-back")


def as_seat(key: str, *agent: str) -> tuple[str, ...]:
    return ("env", f"SEAT={key}", *(agent or AGENT))


def connected(
    made: Launch,
    folder: Path,
    use: Callable[[DialedConnector, list[AgentLink]], Awaitable[None]],
    meanwhile: Callable[[DialedConnector, list[AgentLink]], Awaitable[None]] | None = None,
) -> list[str]:
    """Bring the agents up within 40 s, use them, and end it all; returns what was said on the way."""
    said: list[str] = []

    async def main() -> None:
        connector = DialedConnector(made, folder, lambda source, text: said.append(f"{source}: {text}"))
        links = [AgentLink(place, lambda link, event: None, lambda source, text: None) for place in made.agents]
        beside = [asyncio.ensure_future(beat(links))]
        if meanwhile is not None:
            beside.append(asyncio.ensure_future(meanwhile(connector, links)))
        try:
            await connector.connect(links, agent_payload("job"), 40.0, lambda error: None)
            await use(connector, links)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*(link.close(5) for link in links))
            await connector.close()

    asyncio.run(asyncio.wait_for(main(), 110))
    return said


async def beat(links: list[AgentLink]) -> None:
    """As a controller does, or the agents take it for dead; how long they are silent is of no concern here."""
    while True:
        for link in links:
            link.excuse(link.silence)
            link.beat()
        await asyncio.sleep(HEARTBEAT)


async def nothing(connector: DialedConnector, links: list[AgentLink]) -> None:
    pass


def test_agents_take_the_seats_they_were_summoned_for(tmp_path: Path):
    async def use(connector: DialedConnector, links: list[AgentLink]) -> None:
        for link in links:
            answer = await link.request("compare", limit=30, cwd=str(tmp_path), script=None, digest=None, imports=[])
            assert answer["cwd"]

    connected(launch(as_seat("a"), as_seat("b")), tmp_path, use)


def test_an_agent_on_the_wrong_host_is_refused_and_named(tmp_path: Path):
    class Strict(DialingEngine):
        def misplaced(self, agent: AgentSpec, host: str, agents: Sequence[AgentSpec]) -> MusterError | None:
            return MusterError(f"{agent.name} is on {host}, as {len(agents)} know") if agent.name == "b" else None

    made = replace(launch(as_seat("a"), as_seat("b")), engine=Strict())
    with pytest.raises(MusterError, match=f"^b is on {dial_back.own_name()}, as 2 know$"):
        connected(made, tmp_path, nothing)


def test_an_order_in_a_file_is_readable_by_the_user_alone_and_gone_afterwards(tmp_path: Path):
    async def use(connector: DialedConnector, links: list[AgentLink]) -> None:
        assert (tmp_path / "order.json").stat().st_mode & 0o777 == 0o600

    by_file = [(*AGENT, ORDER_FILE, key) for key in ("a", "b")]
    connected(launch(*by_file), tmp_path, use)
    assert not (tmp_path / "order.json").exists()


def test_the_order_stays_out_of_the_agents_environment(tmp_path: Path):
    async def use(connector: DialedConnector, links: list[AgentLink]) -> None:
        await links[0].request(
            "prepare",
            limit=30,
            env={},
            cwd=str(tmp_path),
            preload=[],
            kind="script",
            target="t.py",
            args=(),
            path=(),
            grace=1,
            keep=False,
        )
        out: list[str] = []
        links[0]._on_event = lambda link, event: out.append(event.get("text", ""))
        links[0].ranks = {0}
        await links[0].request("start", limit=30, ranks=[{"rank": 0, "env": {}}], leader=True, store=False, fed=None)
        await wait_until_async("the whole line", lambda: "".join(out).endswith("\n"))
        assert "".join(out).strip() == "clean"

    (tmp_path / "t.py").write_text('import os; print("MUSTER_DIAL" if "MUSTER_DIAL" in os.environ else "clean")')
    connected(launch(as_seat("a"), keys=("a",)), tmp_path, use)


def test_an_agent_that_dies_is_noticed_at_once(tmp_path: Path):
    async def use(connector: DialedConnector, links: list[AgentLink]) -> None:
        pid = next(pid for pid in _children() if b"MUSTER_DIAL" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(pid, 9)
        # asyncio would wait 30 s for the goodbye of TLS
        await wait_until_async("the loss of the link", lambda: links[0].lost, 20)
        assert links[0].lost is not None
        assert "its agent died" in links[0].lost.message

    connected(launch(as_seat("a"), keys=("a",)), tmp_path, use)


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()]


def test_a_summons_that_ends_without_its_agent_is_explained_by_its_own_words(tmp_path: Path):
    made = launch(("sh", "-c", "echo no such partition >&2; exit 3"), as_seat("b"))
    with pytest.raises(MusterError, match="a: code 3: no such partition"):
        connected(made, tmp_path, nothing)


def test_a_program_that_is_not_there_is_said_with_its_name(tmp_path: Path):
    with pytest.raises(MusterError, match="could not start `/no/srun`") as caught:
        connected(launch(("/no/srun",), keys=("a",)), tmp_path, nothing)
    assert caught.value.hint


def test_an_agent_that_never_comes_is_named_after_the_limit_with_the_addresses_it_should_dial(tmp_path: Path):
    async def meanwhile(connector: DialedConnector, links: list[AgentLink]) -> None:
        await wait_until_async("the agent", lambda: links[0].facts)
        await move_on(40)

    with pytest.raises(MusterError, match=r"^b: no agent connected within 40 s of starting `sleep`") as caught:
        connected(launch(as_seat("a"), ("sleep", "60")), tmp_path, nothing, meanwhile)
    assert "127.0.0.1" in (caught.value.hint or "")


def test_a_scheduler_that_ends_the_job_is_heard(tmp_path: Path):
    async def use(connector: DialedConnector, links: list[AgentLink]) -> None:
        await wait_until_async("the reason", connector.why_ended)
        assert connector.why_ended() == "the scheduler ended it"

    script = 'SEAT=a "$@" & sleep 0.5; echo the end >&2; wait'
    connected(launch(("sh", "-c", script, "sh", *AGENT), keys=("a",)), tmp_path, use)


@pytest.mark.parametrize(
    "hello",
    [
        b'{"token": "guess", "key": "a"}\n',
        b'{"key": "a"}\n',
        b'["token"]\n',
        b"GET / HTTP/1.1\n",
        b"x" * 5000,
    ],
)
def test_a_caller_without_the_token_is_sent_away_and_the_real_agent_still_comes(tmp_path: Path, hello: bytes):
    class Strange(DialedConnector):
        answer: bytes | None = None

        def _order(self, port: int, certificate: str, limit: float) -> str:
            self.strange = asyncio.ensure_future(asyncio.to_thread(self._call, port))
            return super()._order(port, certificate, limit)

        def _call(self, port: int) -> None:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with socket.create_connection(("127.0.0.1", port), timeout=30) as plain, context.wrap_socket(plain) as tls:
                tls.sendall(hello)
                try:
                    self.answer = tls.recv(100)
                except (ConnectionError, ssl.SSLError):
                    self.answer = b""

    async def main() -> None:
        made = launch(("sh", "-c", 'sleep 0.3; SEAT=a "$@"', "sh", *AGENT), keys=("a",))
        connector = Strange(made, tmp_path, lambda source, text: None)
        link = AgentLink(made.agents[0], lambda link, event: None, lambda source, text: None)
        try:
            await connector.connect([link], agent_payload("job"), 40, lambda error: None)
            await connector.strange
            assert connector.answer == b""
        finally:
            await link.close(5)
            await connector.close()

    asyncio.run(asyncio.wait_for(main(), 110))


def test_a_second_agent_for_a_seat_is_sent_away_and_that_is_said(tmp_path: Path):
    said: list[str] = []

    async def use(connector: DialedConnector, links: list[AgentLink]) -> None:
        hello = {"t": "hello", "token": connector._token, "key": "a", "host": "far", "protocol": VERSION}
        assert connector.admit(json.dumps(hello).encode())[0] is None
        assert connector.admit(json.dumps({**hello, "protocol": 99}).encode())[0] is None

    said = connected(launch(as_seat("a"), keys=("a",)), tmp_path, use)
    assert said == [
        "far: rejected an agent with the unexpected key `a`",
        f"far: an agent there uses protocol version 99, but this Muster uses version {VERSION}; connection rejected",
    ]


def order_for(server: socket.socket, certificate: str, *, limit: float) -> dict[str, Any]:
    """What an agent gets that should dial this socket."""
    return {
        "code": inspect.getsource(dial_back) + "\nenter(order, globals())\n",
        "addresses": ["127.0.0.1"],
        "port": server.getsockname()[1],
        "certificate": certificate,
        "token": "secret",
        "key_from": [],
        "protocol": VERSION,
        "limit": limit,
    }


def test_an_agent_does_not_talk_to_another_program_that_has_the_port():
    _, expected = make_server_context()
    other, _ = make_server_context()
    with socket.create_server(("127.0.0.1", 0)) as server:
        order = order_for(server, expected, limit=0.5)
        with subprocess.Popen(AGENT, env={"MUSTER_DIAL": json.dumps(order)}, stderr=subprocess.PIPE) as agent:
            server.settimeout(30)
            plain, _ = server.accept()
            with plain, pytest.raises(OSError):  # noqa: PT011 - it says why, or has given us up meanwhile
                other.wrap_socket(plain, server_side=True)
            server.close()
            assert agent.wait(30) == dial_back.NO_WAY


def test_an_agent_whose_connection_makes_room_for_others_dials_again_until_it_is_rejected():
    context, certificate = make_server_context()
    with socket.create_server(("127.0.0.1", 0)) as server:
        order = order_for(server, certificate, limit=60.0)
        with subprocess.Popen(AGENT, env={"MUSTER_DIAL": json.dumps(order)}, stderr=subprocess.PIPE) as agent:
            server.settimeout(60)
            for _ in range(2):
                with context.wrap_socket(server.accept()[0], server_side=True) as dropped:
                    assert b"secret" in dropped.recv(4096)
            with context.wrap_socket(server.accept()[0], server_side=True) as rejected:
                assert b"secret" in rejected.recv(4096)
                with suppress(OSError):  # the agent does not answer that
                    rejected.unwrap()
            assert agent.wait(60) == dial_back.NO_WAY
            assert agent.stderr is not None
            assert b"the controller rejected the agent on" in agent.stderr.read()


def test_a_variable_that_is_set_but_empty_is_not_the_key_of_an_agent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.setenv("PET_NODE_RANK", "")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    order: Any = {"key_from": KubernetesJobEngine.key_from}
    assert dial_back.own_key(order) == "0"


def test_an_agent_whose_controller_has_ended_meanwhile_does_not_wait_for_it():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # so that nobody else listens there
        order = order_for(held, make_server_context()[1], limit=60.0)
        done = subprocess.run(AGENT, env={"MUSTER_DIAL": json.dumps(order)}, capture_output=True, text=True, timeout=50)
    assert done.returncode == dial_back.NO_WAY
    assert "127.0.0.1 (connection refused)" in done.stderr


def test_hosts_that_pull_an_image_are_given_the_time(tmp_path: Path):
    pulled = tmp_path / "pulled"
    script = f'echo "n1 is pulling box:1"; while [ ! -e {pulled} ]; do sleep 0.02; done; exec "$@"'
    slow = as_seat("a", "sh", "-c", script, "sh", *AGENT)

    async def meanwhile(connector: DialedConnector, links: list[AgentLink]) -> None:
        await wait_until_async("what the agent wrote", lambda: connector.last_words)
        await move_on(40)
        pulled.touch()

    async def use(connector: DialedConnector, links: list[AgentLink]) -> None:
        assert connector.last_words == "n1 is pulling box:1"

    connected(launch(slow, keys=("a",)), tmp_path, use, meanwhile)

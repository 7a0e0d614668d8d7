"""The port that agents dial: what callers without the token can do there, and what they cost."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until_async

from muster.agent.connectivity import free_port
from muster.controller.links import admission, open_files
from muster.controller.links.admission import Admission
from muster.controller.links.certificate import make_server_context
from muster.controller.links.dialed import DialedConnector
from muster.controller.links.dialed_line import DialedLine
from muster.controller.links.link import AgentLink
from muster.engines.engine import AgentSpec, Launch, StartCommand
from muster.engines.local.engine import LocalEngine
from muster.hosts import Host
from muster.shared.wire import VERSION, encode

pytestmark = pytest.mark.timeout(100)

SPEC = AgentSpec(host=Host(name="h1"), name="h1", key="0")
LAUNCH = Launch(engine=LocalEngine(), commands=(StartCommand(argv=("true",), agents=(SPEC,)),), channel="dial")


class Port:
    """An open port of a job with one agent, and the errors that would have ended the job."""

    def __init__(self, folder: Path) -> None:
        self.connector = DialedConnector(LAUNCH, folder, lambda source, text: None)
        self.link = AgentLink(SPEC, lambda link, event: None, lambda source, text: None)
        self.connector.links = [self.link]
        self.connector.payload = b"code\n"
        self.errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: self.errors.append(context))
        context, self.certificate = make_server_context()
        self.socket = free_port()
        self.number = self.socket.getsockname()[1]
        self.admission = Admission(
            self.socket, context, lambda: DialedLine(self.connector), lambda: 1, self.connector.known.__getitem__
        )

    @property
    def waiting(self) -> int:
        return len(self.admission._callers)

    async def send(self, data: bytes, address: str = "127.0.0.1") -> bytes:
        """What the port answers to this line from an address."""
        context = ssl.create_default_context(cadata=self.certificate)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.number, ssl=context, server_hostname="muster", local_addr=(address, 0)
        )
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(100), 30)
        except ConnectionError:
            return b""
        finally:
            writer.transport.abort()

    async def agent_comes(self, address: str = "127.0.0.1") -> bool:
        """Whether the real agent is still admitted."""
        token = self.connector._token
        hello = {"t": "hello", "token": token, "key": "0", "host": "h1", "protocol": VERSION}
        return (await self.send(encode(hello), address)).startswith(b"code\n") and self.link.is_attached


def with_port(tmp_path: Path, use: Callable[[Port], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        port = Port(tmp_path)
        try:
            await use(port)
        finally:
            port.admission.close()
        assert port.errors == []

    asyncio.run(asyncio.wait_for(main(), 90))


STRANGE = [
    rb'{"token":"\ud800","seat":"0"}' + b"\n",
    rb'{"t":"hello","token":"\ud800","key":"0","host":"h","protocol":1}' + b"\n",
    b"[" * 4000 + b"\n",
    b'{"t":"hello","token":1,"key":[],"host":{},"protocol":null}\n',
    b'{"t":"hello","token":"x","key":"0","host":"h","protocol":' + b"9" * 4000 + b"}\n",
    b"\xff\xfe\n",
    b"\n",
    b"null\n",
    b"x" * 5000,
]


def test_no_line_of_a_stranger_reaches_the_handler_that_ends_the_job(tmp_path: Path):
    async def use(port: Port) -> None:
        assert [await port.send(line) for line in STRANGE] == [b""] * len(STRANGE)
        with socket.create_connection(("127.0.0.1", port.number)) as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert await port.agent_comes()

    with_port(tmp_path, use)


def test_an_agent_that_is_rejected_knows_it_from_the_way_the_connection_ends(tmp_path: Path):
    async def use(port: Port) -> None:
        hello = {"t": "hello", "token": port.connector._token, "key": "other", "host": "h1", "protocol": VERSION}

        def call() -> bytes:
            context = ssl.create_default_context(cadata=port.certificate)
            with (
                socket.create_connection(("127.0.0.1", port.number), timeout=30) as plain,
                context.wrap_socket(plain, server_hostname="muster", suppress_ragged_eofs=False) as tls,
            ):
                tls.sendall(encode(hello))
                return tls.recv(100)

        assert await asyncio.to_thread(call) == b""
        await wait_until_async("its end", lambda: port.waiting == 0)

    with_port(tmp_path, use)


def test_an_error_in_admission_drops_the_caller_and_nothing_else(tmp_path: Path):
    async def use(port: Port) -> None:
        admit = port.connector.admit
        port.connector.admit = lambda line: 1 / 0  # type: ignore[assignment]
        assert await port.send(b"hello\n") == b""
        port.connector.admit = admit
        assert await port.agent_comes()

    with_port(tmp_path, use)


def test_idle_callers_are_limited_and_an_agent_still_comes(tmp_path: Path):
    async def use(port: Port) -> None:
        before = len(os.listdir("/proc/self/fd"))
        idle = [socket.create_connection(("127.0.0.1", port.number), timeout=30) for _ in range(300)]
        try:
            assert await port.agent_comes()
            await wait_until_async("the limit", lambda: port.waiting <= admission.STRANGERS + 1)
            here = len(os.listdir("/proc/self/fd")) - before - len(idle)
            assert here <= admission.STRANGERS + 10, "a socket for each caller that waits"
        finally:
            for one in idle:
                one.close()
        await wait_until_async("all of them gone", lambda: port.waiting == 0)

    with_port(tmp_path, use)


def test_who_has_most_callers_loses_the_oldest_and_known_addresses_come_last(tmp_path: Path):
    async def use(port: Port) -> None:
        dropped: list[str] = []

        class Idle(admission.Caller):
            def drop(self) -> None:
                dropped.append(self.address)

        ours = [Idle(port.socket, address) for address in ("agent", "b", "many", "many", "many", "c", "agent", "agent")]
        port.connector.known["agent"] = 1
        port.admission._callers = [*ours]
        for _ in range(8):
            port.admission._drop_one()
        assert dropped == ["many", "many", "b", "many", "c", "agent", "agent", "agent"]

    with_port(tmp_path, use)


def test_idle_callers_from_the_address_of_an_agent_keep_no_other_agent_out(tmp_path: Path):
    async def use(port: Port) -> None:
        port.connector.known["::ffff:127.0.0.1"] = port.connector.known["127.0.0.1"] = 1
        before, idle = len(os.listdir("/proc/self/fd")), list[socket.socket]()
        try:
            for address in ("127.0.0.1", "127.0.0.3"):  # a user of that host, then a stranger
                for _ in range(100):
                    idle.append(socket.socket())
                    idle[-1].bind((address, 0))
                    idle[-1].connect(("127.0.0.1", port.number))
                await wait_until_async("the limit", lambda: port.waiting == admission.STRANGERS + 1)
            assert await port.agent_comes("127.0.0.2")  # after all others have been accepted
            here = len(os.listdir("/proc/self/fd")) - before - len(idle)
            assert here <= admission.STRANGERS + 10, "a socket for each caller that waits"
        finally:
            for one in idle:
                one.close()

    with_port(tmp_path, use)


class FullSocket:
    """A listening socket for whose connections there is no descriptor at first."""

    def __init__(self, real: socket.socket, failures: int) -> None:
        self.real, self.failures = real, failures

    def accept(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self.real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def test_a_controller_without_a_free_descriptor_accepts_agents_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "_PAUSE", 0.01)

    async def use(port: Port) -> None:
        full: Any = FullSocket(port.socket, failures=3)
        port.admission._socket = full
        assert await port.agent_comes()
        assert full.failures == 0

    with_port(tmp_path, use)


# --- the limit of open files --------------------------------------------------------------------------------------

LIMITED = """
import asyncio, resource, sys
from muster.controller.links import open_files
from muster.controller.links.child_process import Child
async def main():
    open_files.require(3)
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
    heard = []
    argv = [sys.executable, "-c", "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"]
    over = asyncio.Event()
    Child(argv, on_data=heard.append, on_words=print, on_closed=over.set)
    await asyncio.wait_for(over.wait(), 60)
    print(b"".join(heard).decode().strip())
    open_files.require(10**6)
try:
    asyncio.run(main())
except Exception as error:
    print(type(error).__name__, error)
"""


def test_the_controller_raises_its_limit_and_what_it_starts_has_the_usual_one():
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1 << 16)
    limits = (32, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    done = subprocess.run(
        [sys.executable, "-c", LIMITED],
        capture_output=True,
        text=True,
        timeout=90,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
    )
    own, child, refusal = done.stdout.splitlines()
    assert (own, child) == (str(hard), "32"), done.stderr
    assert refusal.startswith("MusterError this job needs about 1000")
    assert refusal.endswith(f"open files on this machine, but the limit is {hard}")


def test_a_program_that_cannot_be_started_without_descriptors_is_not_called_missing():
    error = OSError(errno.EMFILE, "Too many open files")
    assert "ulimit -n" in open_files.start_hint(error, "install the OpenSSH client")
    assert open_files.start_hint(FileNotFoundError(2, "x"), "install it") == "install it"

"""The code that is sent to hosts: what it imports, and what an interpreter of another version gets."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from muster.controller.links.agent_package import _modules, agent_payload, agent_sources
from muster.controller.links.link_lines import LinkLines
from muster.shared import light_ctypes, light_socket
from muster.shared.bootstrap import COMMAND, MAGIC_NUMBER, SOURCE_REQUEST, TOGETHER
from muster.shared.light_selectors import EVENT_READ, EVENT_WRITE, Selector
from muster.shared.wire import GREETING

SLOW = {
    "asyncio",
    "collections",
    "ctypes",
    "enum",
    "functools",
    "json",
    "re",
    "selectors",
    "signal",
    "socket",
    "struct",
    "threading",
    "typing",
}
"""Modules of the standard library that take milliseconds of CPU on every host."""


@pytest.mark.parametrize("module", ["agent.agent", "agent.spawner", "rank.script", "rank.process_title"])
def test_agents_and_ranks_start_without_slow_modules(module: str):
    code = f"import sys; before = set(sys.modules); import muster.{module}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not SLOW & set(done.stdout.split())


def test_an_interpreter_that_cannot_read_the_byte_code_runs_the_sources():
    payload = agent_payload("job").replace(MAGIC_NUMBER, b"none")
    with subprocess.Popen([sys.executable, "-c", COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(payload + b'{"do":"session"}\n')
        agent.stdin.flush()
        assert agent.stdout.readline() == SOURCE_REQUEST
        agent.stdin.write(agent_sources())
        agent.stdin.flush()
        assert agent.stdout.readline() == GREETING
        agent.stdin.close()
        assert agent.wait(60) == 0


class Kept:
    """A connection that keeps what is sent over it."""

    way_back = None

    def __init__(self) -> None:
        self.sent = b""

    def send(self, data: bytes) -> None:
        self.sent += data


def test_sources_are_sent_once_and_only_before_the_greeting():
    line, lines = Kept(), LinkLines("a", lambda lines: None)
    lines.attach(line, b"code\n", 5.0)  # type: ignore[arg-type]
    session = line.sent.removeprefix(b"code\n")
    assert lines.feed(b"Welcome!\n" + SOURCE_REQUEST[:5]) == []
    assert line.sent == b"code\n" + session
    assert lines.feed(SOURCE_REQUEST[5:]) == []
    answered = b"code\n" + session + agent_sources() + session
    assert line.sent == answered
    assert lines.feed(SOURCE_REQUEST) == []
    assert lines.feed(GREETING + b'{"t":"up"}\n') == [b'{"t":"up"}']
    lines.feed(SOURCE_REQUEST)
    assert line.sent == answered


def test_a_selector_returns_what_is_ready_and_forgets_what_was_closed():
    selector, (read, write) = Selector(), os.pipe()
    selector.register(read, EVENT_READ, lambda: None)
    with pytest.raises(KeyError):
        selector.register(read, EVENT_READ, lambda: None)
    assert selector.select(0) == []
    os.write(write, b"x")
    assert [(key.fd, events) for key, events in selector.select(5)] == [(read, EVENT_READ)]
    selector.register(write, EVENT_WRITE, lambda: None)
    assert {key.fd for key, _ in selector.select(5)} == {read, write}
    os.close(read)
    os.close(write)
    for fd in (read, write):
        selector.unregister(fd)
    assert not selector.get_map()


def test_descriptors_arrive_with_the_bytes_they_were_sent_with():
    ours, theirs = light_socket.socketpair(light_socket.AF_UNIX, light_socket.SOCK_SEQPACKET)
    read, write = os.pipe()
    with ours, theirs:
        light_socket.send_fds(ours, [b"two"], [read, write])
        light_socket.send_fds(ours, [b"none"], [])
        data, fds, _, _ = light_socket.recv_fds(theirs, 100, 8)
        assert (data, len(fds)) == (b"two", 2)
        os.write(fds[1], b"x")
        assert os.read(read, 1) == b"x"
        assert light_socket.recv_fds(theirs, 100, 8)[:2] == (b"none", [])
        for fd in (read, write, *fds):
            os.close(fd)


def test_the_modules_that_are_unpacked_together_are_those_that_start_together():
    listed = [name for names in TOGETHER for name in names.split()]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(_modules())
    for module in ("agent.agent", "rank.script"):
        code = f"import sys; import muster.{module}; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        loaded = {name.removeprefix("muster.") for name in done.stdout.split()} & set(_modules())
        assert loaded - {"shared.bootstrap"} <= set(listed), "add it to TOGETHER in shared/bootstrap.py"


def test_the_c_library_is_called_without_ctypes():
    process = light_ctypes.function("getpid")()
    assert process == os.getpid()
    state = light_ctypes.python_function("PyThreadState_Get", light_ctypes.c_void_p)()
    assert isinstance(state, int)

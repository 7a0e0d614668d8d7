"""Keeping `kubectl proxy` running, with a program in its place that only listens."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.waiting import wait_until_async

from muster.engines.kubernetes import proxy as proxy_module
from muster.engines.kubernetes.proxy import Proxy, RequestError

_KUBECTL = """\
#!{python} -IS
import os, socket, sys
here = os.path.dirname(__file__)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2].partition("=")[2])
with open(here + "/pids", "w") as file:
    file.write("%d %d" % (os.getpid(), os.getppid()))
listener.listen()
while True:
    connection = listener.accept()[0]
    asked = connection.recv(65536)
    if b"/silent" in asked:
        silent = connection
        continue
    if b"&timeoutSeconds=1 " in asked:
        connection.sendall(b'HTTP/1.0 200 OK\\r\\n\\r\\n{{"type": "ADDED"}}\\n')
        silent = connection
        continue
    os.write(2, b"E1118 nobody answers\\n" * 8000)
    try:
        connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n{{}}")
    except OSError:
        pass
    connection.close()
"""


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    program = tmp_path / "kubectl"
    program.write_text(_KUBECTL.format(python=sys.executable))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Proxy(tmp_path / "socket", b"")


def test_errors_that_kubectl_prints_never_block_it(proxy: Proxy) -> None:
    async def ask() -> None:
        await proxy.up()
        try:
            for _ in range(3):
                assert await proxy.get("/") == {}
        finally:
            await proxy.close()

    asyncio.run(ask())


def test_a_server_that_does_not_answer_is_reported_with_the_limit(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "_REQUEST_LIMIT", 0.2)

    async def ask() -> None:
        await proxy.up()
        try:
            await proxy.get("/silent")
        finally:
            await proxy.close()

    with pytest.raises(RequestError, match=r"no answer \(timeout after 0.2 s\)"):
        asyncio.run(ask())


def test_a_watch_over_a_dead_connection_ends_soon_after_its_limit(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "_LATE", 0.1)

    async def watch() -> list[object]:
        await proxy.up()
        try:
            return [event["type"] async for event in proxy.lines("/?watch=1", 1)]
        finally:
            await proxy.close()

    assert asyncio.run(watch()) == ["ADDED"]


def test_kubectl_ends_with_its_keeper_even_if_that_is_killed(proxy: Proxy, tmp_path: Path) -> None:
    async def lose_keeper() -> None:
        await proxy.up()
        kubectl, keeper = map(int, (tmp_path / "pids").read_text().split())
        command = Path(f"/proc/{kubectl}/cmdline")
        os.kill(keeper, signal.SIGKILL)
        try:
            await wait_until_async("the end of kubectl", lambda: not command.exists() or not command.read_bytes())
        finally:
            await proxy.close()

    asyncio.run(lose_keeper())

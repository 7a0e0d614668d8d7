"""The keeper of idle agents: what happens to them if a run goes away or sends nonsense."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from messages import UP

from muster.controller.keep.host_keeper import Keeper
from muster.controller.keep.keeper_socket import Connection, KeeperGone
from muster.controller.keep.messages import FROM_KEEPER, Agent
from muster.jobs.location import birth

Client = Callable[[], Awaitable[Connection]]


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Those that stand for agents; they end with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def serve(folder: Path, scenario: Callable[[Client], Awaitable[None]]) -> None:
    """Run a scenario of clients beside a keeper."""
    path = str(folder / "socket")

    async def client() -> Connection:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        return Connection(connection, FROM_KEEPER)

    async def run() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            keeper = asyncio.ensure_future(Keeper(listener, Path(path)).run())
            await scenario(client)
            keeper.cancel()

    asyncio.run(run())


def agent_of(host: str, process: subprocess.Popen[bytes]) -> Agent:
    return {
        "t": "agent",
        "entry": {
            "id": 0,
            "host": host,
            "argv": ["ssh", host, "python"],
            "bridges": [],
            "remote": True,
            "stamp": "s",
            "terms": {},
            "python": "/usr/bin/python3",
            "torch": "",
            "begin": 100.0,
            "idle_since": 400.0,
            "keep": 1800.0,
            "lease": 20.0,
            "job": "",
        },
        "session": {"name": "n", "secret": "s", "got": 0, "sent": 0, "kept": "", "partial": ""},
        "facts": {name: value for name, value in UP.items() if name not in ("t", "protocol", "place")},
        "place": "boot net",
        "next_id": 0,
        "ranks": [],
        "pid": process.pid,
        "born": birth(process.pid),
        "unsent": "",
    }


async def give(run: Connection, host: str, processes: list[subprocess.Popen[bytes]]) -> None:
    """Leave an agent with the keeper: a process that only keeps its pipes open."""
    pipes = [os.pipe() for _ in range(3)]
    far = (pipes[0][0], pipes[1][1], pipes[2][1])
    ours = (pipes[0][1], pipes[1][0], pipes[2][0])
    process = subprocess.Popen(["cat"], stdin=far[0], stdout=subprocess.DEVNULL, stderr=far[2], pass_fds=far[1:2])
    processes.append(process)
    run.send(agent_of(host, process), ours)
    assert await asyncio.to_thread(run.receive) == {"t": "done"}
    for descriptor in (*far, *ours):
        os.close(descriptor)  # the process and the keeper have their own


async def kept(client: Client) -> list[tuple[str, str]]:
    """Hosts of the kept agents, with the jobs that use them, as the next run sees them."""
    run = await client()
    message = await asyncio.to_thread(run.receive)
    run.close()
    return [(entry["host"], entry["job"]) for entry in message["agents"]]


def test_a_run_that_goes_while_it_takes_agents_leaves_the_others_for_the_next(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
):
    async def scenario(client: Client) -> None:
        first = await client()
        await asyncio.to_thread(first.receive)
        await give(first, "a", processes)
        await give(first, "b", processes)
        assert await kept(client) == [("a", ""), ("b", "")]
        killed = await client()
        await asyncio.to_thread(killed.receive)
        killed.send({"t": "take", "ids": [1, 2], "job": "j"})
        killed.close()
        await asyncio.sleep(0.1)  # in which the keeper reads what has already arrived
        assert await kept(client) == [("b", "")]  # a went with the connection over which it was sent

    serve(tmp_path, scenario)


def test_a_run_that_sends_an_agent_without_its_pipes_is_dropped_and_the_others_stay(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
):
    async def scenario(client: Client) -> None:
        first = await client()
        await asyncio.to_thread(first.receive)
        await give(first, "a", processes)
        strange = await client()
        await asyncio.to_thread(strange.receive)
        with subprocess.Popen(["true"]) as process:
            strange.send(agent_of("b", process))
        with pytest.raises(KeeperGone, match="it closed the connection"):
            await asyncio.to_thread(strange.receive)
        assert await kept(client) == [("a", "")]

    serve(tmp_path, scenario)

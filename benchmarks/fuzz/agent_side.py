"""The agent under mutated lines: reports of its ranks, messages of its spawner, and requests of its controller."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from random import Random

from benchmarks.fuzz.mutations import mutated_line
from benchmarks.fuzz.tally import Tally
from benchmarks.fuzz.valid_messages import news_samples, report_samples, request_samples
from muster.agent.agent import Agent
from muster.agent.channel import Pipes
from muster.agent.controller_session import clock
from muster.agent.lease import Lease
from muster.agent.rank_process import Rank
from muster.agent.spawner_client import Spawner

_LINES = 1000
"""Lines per agent; then another process runs the next one."""

_LIMIT = 120.0
"""Seconds for these lines; an agent that takes longer hangs."""

_HEAVY = 0.02
"""Share of requests that start processes."""


class FuzzedAgent:
    """An agent in this process, with two ranks that are only pipes, and a spawner that is only a socket."""

    def __init__(self, random: Random, tally: Tally) -> None:
        self.random, self.tally = random, tally
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        self.agent = Agent(
            Pipes(self.far.fileno(), self.far.fileno()),
            {"job": "fuzz", "scheduler": "slurm", "orphaned": "", "attach": (), "exits_with_job": False},
            1024,
        )
        self.agent.session.begin(b"", b"{}\n")
        self.spawner: Spawner | None = None
        self.renew()

    def renew(self) -> None:
        """Start again with two ranks and a spawner."""
        agent, local = self.agent, self.agent.ranks
        agent.ending, agent.why_ended = False, ""
        for rank in local.ranks.values():
            for stream in rank.streams:
                local._forget(stream)
            rank.close()
        local.stopping = None
        local.ranks = {number: Rank(number, {}) for number in (0, 1)}
        for rank in local.ranks.values():
            for stream in rank.streams:
                local._watch(stream)
        if local.spawner is not None and local.spawner is not self.spawner:
            local._on_spawner_gone()
        if local.spawner is None:
            self.spawner = local.starter.spawner = Spawner()
            self.spawner.pid = 2**22 + 1  # no such process
            agent.selector.register(self.spawner.socket, 1, local._on_spawner)

    def feed(self) -> None:
        """Send one mutated line, and let the agent do what it does with it."""
        self.tally.lines += 1
        act = self.random.random()
        if act < 0.5:
            line = mutated_line(self.random.choice(report_samples()), self.random)
            self._write(self.agent.ranks.ranks, line)
        elif act < 0.7 and self.spawner is not None and self.agent.ranks.spawner is self.spawner:
            line = mutated_line(self.random.choice(news_samples()), self.random)
            if len(line) < 1 << 17:
                self.spawner._theirs.send(line)
        else:
            samples = request_samples(heavy=self.random.random() < _HEAVY)
            line = mutated_line(self.random.choice(samples), self.random)
            self.near.sendall(line)
        with self.tally.counted("the agent's loop"):
            self.agent.turn()
        self._drain()
        if self.agent.ending:
            self.tally.lost += 1
        if self.agent.ending or self.agent.ranks.spawner is None or len(self.agent.ranks.ranks) < 2:
            with self.tally.counted("the agent's end"):
                self.agent.results.end()
            self._renew_session()
            self.renew()

    def _write(self, ranks: dict[int, Rank], line: bytes) -> None:
        fd = ranks[self.random.choice((0, 1))].streams[2].write
        os.set_blocking(fd, False)
        try:
            os.write(fd, line)
        except BlockingIOError:
            pass  # longer than a socket takes

    def _drain(self) -> None:
        try:
            while self.near.recv(1 << 20):
                pass
        except BlockingIOError:
            pass

    def _renew_session(self) -> None:
        """The agent may have ended its session, or wait for the rest of a broken line."""
        session = self.agent.session
        session._reader = type(session._reader)()
        session.log.acknowledge(session.log.count)
        session.lease = Lease(1e6, clock())


def _harmless(*_: object) -> None:
    """In place of os.kill: a mutated process number may stand for every process of this machine."""
    raise ProcessLookupError


def _work(lines: int, seed: int) -> None:
    """Run one agent, and print what came of it."""
    os.kill = os.killpg = _harmless  # type: ignore[assignment]
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    tally = Tally()
    fuzzed = FuzzedAgent(Random(seed), tally)
    for _ in range(lines):
        fuzzed.feed()
    print(json.dumps([tally.lines, tally.lost, tally.uncaught, tally.examples]), flush=True)
    os._exit(0)


def fuzz_agent(folder: Path, lines: int, seed: int) -> Tally:
    """Feed so many lines to agents in processes of their own, and return what they did."""
    tally = Tally()
    number = 0
    while tally.lines < lines:
        number += 1
        count = min(_LINES, lines - tally.lines)
        env = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder), "TMPDIR": str(folder)}
        argv = ["unshare", "--pid", "--fork", "--kill-child"] if os.geteuid() == 0 else []
        argv += [sys.executable, "-m", __name__, str(count), str(seed * 1_000_003 + number)]
        said = b""
        fed, lost, uncaught, examples = count, 0, dict[str, int](), dict[str, str]()
        try:
            done = subprocess.run(argv, env=env, capture_output=True, timeout=_LIMIT)
            said = done.stderr
            fed, lost, uncaught, examples = json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            tally.note("an agent hangs", argv)
        except (ValueError, IndexError):
            tally.note("an agent died", f"{argv}\n{said.decode(errors='replace')[-2000:]}")
        tally.lines += fed
        tally.lost += lost
        tally.uncaught.update(uncaught)
        tally.examples = {**examples, **tally.examples}
    return tally


if __name__ == "__main__":
    _work(int(sys.argv[1]), int(sys.argv[2]))

"""The agent's side of its ranks: their pipes, their spawner, and how they are ended."""

from __future__ import annotations

import codecs
import json
import os
import signal
import socket
import sys
import time

from . import boot, machine, processes, spawner
from .wire import LineReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KILL_LIMIT = 5.0
"""Seconds to wait for a killed process: one that hangs in the kernel (D state) outlives SIGKILL."""


_LAST_WORD = 0.5
"""Seconds to wait for the exit status of ranks that are gone."""


class Stream:
    """One descriptor of a rank that the agent reads: stdout (1), stderr (2) or its reports (3)."""

    def __init__(self, rank: int, number: int) -> None:
        self.rank = rank
        self.number = number
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        # Bytes that are no UTF-8 travel as lone surrogates and come out as the same bytes.
        self.decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.reports = LineReader()


class Rank:
    """One rank of the running attempt."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0
        self.exited = False
        self.stopped_at: float | None = None
        self.streams = [Stream(number, kind) for kind in (1, 2, 3)]


class Spawner:
    """A handle on the process that starts ranks, with a socket to talk to it."""

    def __init__(self) -> None:
        self.socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.pid = 0

    def start_zygote(self, config: dict[str, Any], env: dict[str, str]) -> None:
        """Exec a fresh interpreter that imports what `config` names: all it reads at start comes from `env`."""
        # One thread while importing: an OpenMP pool that is alive when ranks are forked hangs them.
        while_importing = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        config = {
            **config,
            "socket": self._theirs.fileno(),
            "agent": os.getpid(),
            "restore": {name: env.get(name) for name in while_importing},
        }
        code = processes.file_with(boot.payload(boot.own_parcel(), "spawner", config))
        argv = [sys.executable, "-c", boot.COMMAND, "muster zygote" + " " * 200]  # room for a rank's title
        zygote_env = {**env, **while_importing}
        self.pid = processes.start(
            argv, zygote_env, cwd=config["cwd"], stdin=code, stderr=2, keep=[self._theirs.fileno()]
        )
        os.close(code)
        self._theirs.close()

    def start_plain(self, env: dict[str, str], cwd: str, keep: int) -> None:
        """Fork a starter that execs each rank as a fresh interpreter; of our descriptors it keeps only stderr."""
        me = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                processes.die_with(me)
                processes.outlive_parent()
                os.setsid()
                processes.default_signals()
                signal.set_wakeup_fd(-1)
                ours = self._theirs.fileno()
                os.dup2(2, 1)
                null = os.open(os.devnull, os.O_RDONLY)
                os.dup2(null, 0)
                os.closerange(3, ours)
                os.closerange(ours + 1, keep)
                os.chdir(cwd)
                spawner.serve(self._theirs, env, fork=False)
            finally:
                os._exit(0)
        self._theirs.close()

    def start_rank(self, rank: Rank, request: dict[str, Any]) -> None:
        """Ask for one rank; the write ends of its pipes go along and are closed here."""
        fds = [stream.write for stream in rank.streams]
        self.socket.setblocking(True)
        socket.send_fds(self.socket, [json.dumps(request).encode()], fds)
        self.socket.setblocking(False)
        for fd in fds:
            os.close(fd)

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have come; None when the spawner is gone."""
        messages: list[dict[str, Any]] = []
        while True:
            try:
                data = self.socket.recv(1 << 17)
            except BlockingIOError:
                return messages
            except OSError:
                data = b""
            if not data:
                return messages or None
            messages.append(json.loads(data))


class Stopping:
    """The end of all ranks: SIGTERM to each, then SIGKILL to everything below the agent but the spawner."""

    def __init__(self, ranks: dict[int, Rank], spare: int, grace: float) -> None:
        self.ranks = ranks
        self.spare = spare
        now = time.monotonic()
        self.kill_at = now + grace
        self.give_up_at = self.kill_at + KILL_LIMIT
        living = [rank for rank in ranks.values() if not rank.exited]
        for rank in living:
            rank.stopped_at = time.time()
        if grace > 0:
            processes.kill([rank.pid for rank in living if rank.pid], signal.SIGTERM)
            processes.kill([rank.pid for rank in living if rank.pid], signal.SIGCONT)  # a stopped one must hear it

    def step(self) -> bool:
        """Do what is due now; True when nothing is left, or nothing more can be done."""
        now = time.monotonic()
        if now < self.kill_at and not all(rank.exited for rank in self.ranks.values()):
            return False
        left = self.left()
        processes.kill(left, signal.SIGKILL)
        if left:
            return now > self.give_up_at
        # Nothing lives any more; the spawner's word on how each rank ended follows at once, if it can still speak.
        return all(rank.exited for rank in self.ranks.values()) or now > self.kill_at + _LAST_WORD

    def left(self) -> list[int]:
        """Processes of the job that still live."""
        return [pid for pid in processes.descendants(os.getpid()) if pid != self.spare]


def exit_event(rank: Rank, message: dict[str, Any], oom_before: int) -> dict[str, Any]:
    """What the controller is told of a rank's end."""
    return {
        "t": "exit",
        "rank": rank.number,
        "status": message["status"],
        "time": message["time"],
        "stopped_at": rank.stopped_at,
        "oom": message["status"] == -signal.SIGKILL and machine.oom_kills() > oom_before,
        "peak": message["peak"],
    }

"""The agent's handle on the process that starts its ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time

from ..rank import process_title
from ..rank import script as rank
from ..shared import bootstrap, processes
from . import spawner, store_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..shared.spawner_messages import StartRank, Storeless, Target, ZygoteConfig
    from .rank_process import Rank


_STORE_LIMIT = 2.0
"""Seconds that the store may take to die."""


class Spawner:
    """A zygote or a plain starter, with a socket to talk to it."""

    def __init__(self) -> None:
        self.socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.pid = 0
        self.store = 0
        """The process that keeps the job's store, if this host does."""

    def start_zygote(self, target: Target, env: dict[str, str]) -> None:
        """Exec a fresh interpreter that imports what `target` names: all it reads at start comes from `env`."""
        # One thread while importing: an OpenMP pool that is alive when ranks are forked hangs them.
        while_importing = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        config: ZygoteConfig = {
            **target,
            "socket": self._theirs.fileno(),
            "agent": os.getpid(),
            "restore": {name: env.get(name) for name in while_importing},
        }
        code = processes.file_with(bootstrap.payload(bootstrap.own_parcel(), "agent.spawner", config))
        self.pid = processes.start(
            [sys.executable, "-u", "-c", bootstrap.COMMAND, *process_title.room_for(rank.command(config))],
            # The first variable is one that no rank changes: see rank._set_environment.
            {"PATH": env.get("PATH", ""), **env, **while_importing},
            cwd=config["cwd"],
            stdin=code,
            stderr=2,
            keep=[self._theirs.fileno()],
        )
        os.close(code)
        self._theirs.close()

    def start_plain(self, config: Target, env: dict[str, str]) -> None:
        """Fork a starter that execs each rank as a fresh interpreter; of our descriptors it keeps only stderr."""

        def serve() -> None:
            processes.outlive_parent()
            os.dup2(2, 1)
            os.chdir(config["cwd"])
            spawner.serve(self._theirs, config, env, fork=False)

        # MPICH's mpiexec talks to its ranks over a descriptor they inherit.
        self.pid = processes.fork(serve, self._theirs.fileno(), int(env.get("PMI_FD", 0)))
        self._theirs.close()

    def start_rank(self, rank: Rank, call: list[int]) -> None:
        """Ask for one rank; the write ends of its pipes go along and are closed here; the others stay open.

        The agent asks for the next one when this one has started, so a message always fits into the socket.
        """
        request: StartRank = {"t": "rank", "rank": rank.number, "env": rank.env}
        fds = [rank.stdin, *(stream.write for stream in rank.streams), rank.stacks, *call]
        socket.send_fds(self.socket, [json.dumps(request).encode()], fds)
        for stream in rank.streams:
            stream.close_write()

    def start_store(self, listener: socket.socket) -> None:
        """Ask for the process that keeps the job's store at a listening socket."""
        socket.send_fds(self.socket, [b'{"t": "store"}'], [listener.fileno()])

    def end_store(self) -> None:
        """End it: the next attempt has a store of its own."""
        pid, self.store = self.store, 0
        give_up = time.monotonic() + _STORE_LIMIT
        while pid and processes.is_alive(pid) and time.monotonic() < give_up:
            processes.kill([pid], signal.SIGKILL)
            time.sleep(0.001)

    def has_lost_store(self, message: Storeless) -> bool:
        """Whether a store has ended that ranks may need: not one that we ended, nor one on a host without torch."""
        is_lost = self.store == message["pid"] and message["status"] != store_process.NO_TORCH
        self.store = 0 if self.store == message["pid"] else self.store
        return is_lost

    def receive(self) -> list[Any] | None:
        """The messages that have come; None when the spawner is gone."""
        from ..shared.protocol import validate  # not before: the agent's first message must not wait for it
        from ..shared.spawner_messages import NEWS

        messages: list[Any] = []
        while True:
            try:
                data = self.socket.recv(1 << 17)
            except BlockingIOError:
                return messages
            except OSError:
                data = b""
            if not data:
                return messages or None
            message = json.loads(data)
            validate(message, NEWS)
            messages.append(message)

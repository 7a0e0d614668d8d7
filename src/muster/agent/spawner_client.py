"""The agent's handle on the process that starts its ranks."""

from __future__ import annotations

import os
import sys
import time

from ..rank import process_title
from ..shared import bootstrap, light_json, processes
from ..shared import light_signal as signal
from ..shared import light_socket as socket
from ..shared.wire import ProtocolError, decode
from . import spawner, store_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from typing import Any

    from ..shared.spawner_messages import StartRank, Storeless, Target, ZygoteConfig
    from .guard import Guard
    from .rank_process import Rank


_STORE_LIMIT = 2.0
"""Seconds to wait for the killed store."""

_LATER_WORDS, _LATER_SIZE = 64, 4096
"""Room in the zygote's command line for the command of a later job, in words and bytes."""


class Spawner:
    """A zygote or a plain starter, with the socket to it."""

    def __init__(self) -> None:
        self.socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.pid = 0
        self.store = 0
        """The process that serves the job's store, if it runs on this host."""
        self._coming = self._unwanted = 0
        """Stores that were requested and have not started, and how many of them are to be killed when they have."""
        self.is_plain = False
        """Whether ranks and the store are fresh interpreters."""
        self.can_serve_next = False
        """Whether it is a zygote that may serve another job."""

    def start_zygote(self, target: Target, env: dict[str, str], *, keep: bool) -> None:
        """Start a fresh interpreter with the environment `env`, which imports the modules of `target`.

        With `keep`, it can serve another job later.
        """
        # Import with one thread, because an OpenMP pool that exists when ranks are forked makes them hang.
        while_importing = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        config: ZygoteConfig = {
            **target,
            "socket": self._theirs.fileno(),
            "agent": os.getpid(),
            "restore": {name: env.get(name) for name in while_importing},
            "keep": keep,
        }
        later = [" "] * _LATER_WORDS + [" " * _LATER_SIZE] if keep else []
        room = process_title.room_for(process_title.command(config))
        code = processes.file_with(bootstrap.payload(bootstrap.own_package(), "agent.spawner", config))
        self.pid = processes.start(
            [sys.executable, "-u", "-c", bootstrap.COMMAND, *room, *later],
            # The first variable must be one that no rank changes: see rank._set_environment.
            {"PATH": env.get("PATH", ""), **env, **while_importing},
            cwd=config["cwd"],
            stdin=code,
            stderr=2,
            keep=[self._theirs.fileno()],
        )
        os.close(code)
        self._theirs.close()
        self.can_serve_next = keep

    def serve_next(self, target: Target, env: Mapping[str, str]) -> None:
        """Ask the zygote to serve another job."""
        code = processes.file_with(light_json.dumps({"target": target, "env": env}).encode())
        socket.send_fds(self.socket, [b'{"t": "next"}'], [code])
        os.close(code)

    def start_plain(self, config: Target, env: dict[str, str]) -> None:
        """Fork a starter that starts each rank as a fresh interpreter; of our descriptors it keeps only stderr."""
        from ..shared import protocol, spawner_messages  # both processes need them, so load them once

        del protocol, spawner_messages
        self.is_plain = True

        def serve() -> None:
            processes.outlive_parent()
            os.dup2(2, 1)
            os.chdir(config["cwd"])
            spawner.serve(self._theirs, config, env, fork=False)

        # MPICH's mpiexec communicates with its ranks over an inherited descriptor.
        self.pid = processes.fork(serve, self._theirs.fileno(), int(env.get("PMI_FD", 0)))
        self._theirs.close()

    def start_rank(self, rank: Rank, call: list[int]) -> None:
        """Request one rank; the write ends of its pipes are sent along and closed here.

        The agent requests the next rank when this one has started, so a message always fits into the socket.
        """
        request: StartRank = {"t": "rank", "rank": rank.number, "env": rank.env}
        fds = [rank.stdin, *(stream.write for stream in rank.streams), rank.stacks, *call]
        socket.send_fds(self.socket, [light_json.dumps(request).encode()], fds)
        for stream in rank.streams:
            stream.close_write()

    @property
    def pids(self) -> set[int]:
        """The spawner, which the next attempt needs, and the store, which ranks of other hosts may need."""
        return {self.pid, self.store} - {0}

    def start_store(self, listener: socket.socket) -> None:
        """Request the process that serves the job's store on a listening socket."""
        try:
            socket.send_fds(self.socket, [b'{"t": "store"}'], [listener.fileno()])
            self._coming += 1
        except OSError:
            pass  # the spawner is gone, which the agent learns next

    def on_store_started(self, pid: int) -> None:
        """The store has been started; it is killed if its attempt has ended, because the next one may use the port."""
        self._coming -= 1
        if not self._unwanted:
            self.store = pid
            return
        self._unwanted -= 1
        processes.kill([pid] if pid else [], signal.SIGKILL)

    def end_store(self) -> None:
        """End the store; the next attempt gets a new one."""
        pid, self.store, self._unwanted = self.store, 0, self._coming
        give_up = time.monotonic() + _STORE_LIMIT
        while pid and processes.is_alive(pid) and time.monotonic() < give_up:
            processes.kill([pid], signal.SIGKILL)
            time.sleep(0.001)

    def end(self) -> None:
        """Kill this process, because another one takes its place."""
        self.socket.close()
        processes.end(self.pid, _STORE_LIMIT)

    def has_lost_store(self, message: Storeless) -> bool:
        """Whether a store that ranks may need has exited: not one that we ended, nor one on a host without torch."""
        is_lost = self.store == message["pid"] and message["status"] != store_process.NO_TORCH
        self.store = 0 if self.store == message["pid"] else self.store
        return is_lost

    def receive(self, ranks: Container[int], guard: Guard) -> list[Any] | None:
        """Return the received messages about these ranks; None if the spawner is gone, or violates the protocol."""
        from ..shared.protocol import validate  # here, so that it does not delay the agent's first message
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
            try:
                message = decode(data)
                validate(message, NEWS)
                if message.get("pid", 0) < 0 or ("rank" in message and message["rank"] not in ranks):
                    raise ProtocolError(f"message `{message['t']}` is about an unknown rank or process")
            except ProtocolError as error:  # a module that the script preloads may write there
                guard.failed("what the process that starts ranks reports", error)
                processes.end(self.pid, _STORE_LIMIT)  # its ranks die with it
                return None
            messages.append(message)

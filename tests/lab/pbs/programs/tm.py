"""The task manager as a program in a job uses it: through the mom of its own host."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from wire import call, dial


class Failed(Exception):
    """A call of the task manager failed; the text is the name of the error."""


class TaskManager:
    """The job this process belongs to."""

    def __init__(self) -> None:
        self._job = {"job": os.environ.get("PBS_JOBID", ""), "cookie": os.environ.get("PBS_JOBCOOKIE", "")}
        try:
            answer = call(socket.gethostname(), do="nodes", **self._job)
        except (OSError, KeyError):
            raise Failed("TM_ENOTCONNECTED") from None
        if "error" in answer:
            raise Failed(answer["error"])
        self.nodes: list[str] = answer["nodes"]
        self.mom = dial(socket.gethostname(), do="watch")
        """A connection that closes when the mom of this host dies."""

    def spawn(self, line: int, argv: list[str], capture: tuple[str, int] | None = None) -> RemoteTask:
        """Start a program on the host of a line of the nodefile."""
        host = self.nodes[line]
        try:
            connection = dial(host, do="spawn", line=line, argv=argv, capture=capture, **self._job)
            connection.settimeout(20)
            return RemoteTask(host, connection)
        except OSError:
            raise Failed("TM_ESYSTEM") from None

    def signal(self, task: RemoteTask, number: int) -> None:
        try:
            call(task.host, 1, do="signal", task=task.number, number=number, **self._job)
        except OSError:
            pass


class RemoteTask:
    """A task that was started, and the connection that reports its end."""

    def __init__(self, host: str, connection: socket.socket) -> None:
        self.host = host
        self.connection = connection
        self._file = connection.makefile("rb")
        self.number: int = self._read()["task"]
        connection.settimeout(None)

    def _read(self) -> dict[str, Any]:
        line = self._file.readline()
        if not line:
            raise ConnectionError
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def exit_status(self) -> int | None:
        """The exit status, once the connection can be read; None if the host has gone, of which PBS hears nothing."""
        try:
            return self._read()["exit"]
        except OSError:
            return None

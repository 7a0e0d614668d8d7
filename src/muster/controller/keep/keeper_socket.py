"""The unix socket of the keeper: where it is, who may use it, and messages with descriptors attached."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster.home import make_short_folder, short_folder, state_folder
from muster.shared.protocol import validate
from muster.shared.wire import LineReader, ProtocolError, decode, encode

LIMIT = 5.0
"""Seconds for the other side to answer; a keeper that has just been started needs 0.2 s."""

_DESCRIPTORS = 3
"""Descriptors that belong to one message, at most."""

_START = (
    "import json, sys; given = json.load(sys.stdin); sys.path[:] = given.pop('path'); "
    "from muster.controller.keep.host_keeper import main; main(**given)"
)


class KeeperGone(Exception):
    """The other side has closed the connection, does not answer, or violates the protocol."""


class Connection:
    """One end of a connection between a run and the keeper."""

    def __init__(self, connection: socket.socket, kinds: dict[str, type]) -> None:
        """`kinds` are the messages that the other side may send."""
        connection.settimeout(LIMIT)
        self.socket = connection
        self._kinds = kinds
        self._reader = LineReader()
        self._lines: list[bytes] = []
        self._descriptors: list[int] = []

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message with descriptors; KeeperGone if that is not possible."""
        data = encode(message)
        try:
            sent = socket.send_fds(self.socket, [data], descriptors) if descriptors else 0
            self.socket.sendall(data[sent:])
        except OSError as error:
            raise KeeperGone(str(error)) from None

    def receive(self) -> Any:
        """Wait for the next message."""
        while not self._lines:
            self.read()
        return self.next()

    def read(self) -> None:
        """Read what has arrived; KeeperGone if it is the end."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, _DESCRIPTORS)
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            self._descriptors += descriptors
            self._lines += self._reader.lines(data)
        except (OSError, ProtocolError) as error:
            raise KeeperGone(str(error)) from None
        if not data:
            raise KeeperGone("it closed the connection")

    def next(self) -> Any:
        """The next message that has arrived; None if there is none."""
        if not self._lines:
            return None
        try:
            message = decode(self._lines.pop(0))
            validate(message, self._kinds)
        except ProtocolError as error:
            raise KeeperGone(str(error)) from None
        return message

    def take_descriptors(self) -> tuple[int, int, int]:
        """The descriptors that came with the last message."""
        if len(self._descriptors) < _DESCRIPTORS:
            raise KeeperGone("descriptors are missing")
        first, second, third, *self._descriptors = self._descriptors
        return first, second, third

    def close(self) -> None:
        """Close the connection and all descriptors that nobody has taken."""
        self.socket.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


def is_own_user(connection: socket.socket) -> bool:
    """Whether the process at the other end is of this user."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # macOS; only this user can enter the directory of the socket
    size = struct.calcsize("iII")
    _, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return user == os.getuid()


def socket_path() -> Path:
    """Where the keeper of this user and state directory listens, on this machine only."""
    name = hashlib.sha256(os.fsencode(state_folder())).hexdigest()[:16]
    return short_folder() / f"keep-{name}.socket"


def connect(kinds: dict[str, type]) -> Connection | None:
    """Connect to the keeper; None if there is none."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(LIMIT)
    try:
        connection.connect(str(socket_path()))
        if is_own_user(connection):
            return Connection(connection, kinds)
    except OSError:
        pass
    connection.close()
    return None


@contextmanager
def locked() -> Generator[None]:
    """Keep others from starting or ending the keeper: two runs may end at the same time."""
    path = make_short_folder() / f"{socket_path().name}.lock"
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def connect_or_start(kinds: dict[str, type]) -> Connection:
    """Connect to the keeper, and start one if there is none; KeeperGone if that is not possible."""
    try:
        with locked():
            path = socket_path()
            connection = connect(kinds)
            if connection is None:
                path.unlink(missing_ok=True)
                _start(path)
                connection = connect(kinds)
    except OSError as error:
        raise KeeperGone(str(error)) from None
    if connection is None:
        raise KeeperGone("it did not start")
    return connection


def _start(path: Path) -> None:
    """Start the keeper, which serves a socket that accepts connections already."""
    errors = os.open(state_folder() / "keep.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(errors, "wb") as log, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, "muster keep"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd="/",
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # it outlives the terminal
        )
        process.returncode = 0  # nobody waits for it
        assert process.stdin is not None
        process.stdin.write(json.dumps({"path": sys.path, "listener": listener.fileno(), "at": str(path)}).encode())
        process.stdin.close()

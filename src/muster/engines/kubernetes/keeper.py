"""Runs `kubectl proxy` for a job, and ends the agents in its pods if the controller was killed.

An agent in a pod cannot distinguish a killed controller from a restart of the API server: its stdin ends in both cases.
So this program holds a copy of every connection. If the controller closes its own end of `stdin` without having taken
them back, this sends the last message over each.

Started as `python keeper.py LAST SOCKET COMMAND …`, with the last message in hexadecimal digits.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import time

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1

_LAST_LIMIT = 2.0
"""Seconds for the last messages to arrive."""

_LOOK = 1.0
"""Seconds between two looks whether the proxy still runs."""

SIZE = 16
"""Size of each message of the controller in bytes: `+` with a new connection or `-`, and the key of the connection."""


def main(last: bytes, path: str, argv: list[str]) -> None:
    """Keep the proxy running until the controller is gone."""
    controller = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    held: dict[bytes, int] = {}
    proxy = _start(argv)
    poll = select.poll()
    poll.register(controller, select.POLLIN)
    while True:
        if not poll.poll(_LOOK * 1000):
            if os.waitpid(proxy, os.WNOHANG)[0]:
                proxy = _start(argv)
            continue
        message, fds, _flags, _address = socket.recv_fds(controller, SIZE, 1)
        if not message:
            break
        key = message[1:]
        if key in held:
            os.close(held.pop(key))
        if message[:1] == b"+" and fds:
            held[key] = fds[0]
    _say(last, list(held.values()))
    os.kill(proxy, signal.SIGTERM)
    try:
        os.unlink(path)
    except OSError:
        pass


def _start(argv: list[str]) -> int:
    """Start the proxy, which ends with this process, also if that is killed."""
    keeper = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        if sys.platform == "linux":
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        if os.getppid() == keeper:
            os.execv(argv[0], argv)
    except OSError as error:
        os.write(2, f"error: could not run {argv[0]} ({error.strerror})\n".encode())
    finally:
        os._exit(1)


def _say(last: bytes, fds: list[int]) -> None:
    """Send the last message over all connections, and wait until the other side has closed them."""
    poll = select.poll()
    for fd in fds:
        try:
            os.write(fd, last)
        except OSError:
            continue
        poll.register(fd, select.POLLIN)
    left, end = len(fds), time.monotonic() + _LAST_LIMIT
    while left > 0 and time.monotonic() < end:
        for fd, _event in poll.poll(100):
            try:
                if os.read(fd, 1 << 16):
                    continue
            except BlockingIOError:
                continue
            except OSError:
                pass
            poll.unregister(fd)
            left -= 1


if __name__ == "__main__":
    main(bytes.fromhex(sys.argv[1]), sys.argv[2], sys.argv[3:])

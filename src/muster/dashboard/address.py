"""Where a dashboard is served: a port of this machine, and a secret in the address."""

from __future__ import annotations

import secrets
import socket

from muster.errors import MusterError


def listen(port: int = 0) -> socket.socket:
    """A socket on 127.0.0.1, at a free port unless one is given."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise MusterError(
            f"could not listen on port {port} of this machine: {(error.strerror or str(error)).lower()}",
            hint="leave the port out to get a free one",
        ) from None
    listener.listen(128)
    return listener


def new_token() -> str:
    """128 random bits."""
    return secrets.token_urlsafe(16)


def address(listener: socket.socket, token: str) -> str:
    """What to open in a browser."""
    return f"http://127.0.0.1:{listener.getsockname()[1]}/{token}/"

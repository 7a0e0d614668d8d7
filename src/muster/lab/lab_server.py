"""The background process that owns the lab of `muster lab up` and serves later commands.

It is started as `python -P -m muster.lab.lab_server SETTINGS`, where SETTINGS is JSON: hosts, the options of `Lab`, and
`folder`, the directory of its socket and lock. It reports on stdout whether the lab started, as one line of JSON, and
then serves requests, one at a time: each connection sends one line of JSON and receives one. The lab ends with this
process, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypedDict, cast

from muster.errors import LabError, MusterError
from muster.lab.cluster import Lab

SOCKET = "lab.sock"
LOCK = "lab.lock"
REQUEST_LIMIT = 10.0
"""Seconds that a client may take to send its request."""

_LARGEST_REQUEST = 1 << 16
"""Bytes of a request."""

FAULTS: dict[str, Callable[..., None]] = {
    "cut": Lab.cut,
    "heal": Lab.heal,
    "crash": Lab.crash,
    "power-off": Lab.power_off,
    "reboot": Lab.reboot,
    "freeze": Lab.freeze,
    "thaw": Lab.thaw,
    "slow": Lab.slow,
    "loss": Lab.loss,
    "delay": Lab.delay,
    "fill-disk": Lab.fill_disk,
    "block-port": Lab.block_port,
}
"""Faults of a host: the verb on the command line and the method."""


class Settings(TypedDict):
    """What the server is started with: `options` are those of `Lab`."""

    hosts: int
    options: dict[str, Any]
    folder: str


class Description(TypedDict):
    """The whole state of the lab: `keeper` is the server's process id, and each of `hosts` a `HostStatus`."""

    kind: str
    limits: Sequence[str]
    keeper: int
    ssh: list[str]
    hosts: list[dict[str, Any]]


def socket_address(folder: int) -> str:
    """The path of the socket below an open directory, because its full path may exceed the kernel's limit."""
    return f"/proc/self/fd/{folder}/{SOCKET}"


def answer(lab: Lab, verb: str, host: str = "", **arguments: Any) -> Mapping[str, object]:
    """Execute a request and return the reply."""
    if verb in FAULTS:
        FAULTS[verb](lab, host, **arguments)
        return {}
    if verb == "enter":
        return {"argv": lab.enter_argv(host, cwd=arguments["cwd"])}
    if verb == "ssh":
        lab.address(host)
        return {"argv": lab.ssh_argv()}
    if verb == "status":
        return describe(lab)
    raise LabError("invalid request: the lab does not know its `verb`", hint="muster lab --help")


def describe(lab: Lab) -> Description:
    """The whole state of the lab."""
    return {
        "kind": lab.kind,
        "limits": lab.limits,
        "keeper": os.getpid(),
        "ssh": lab.ssh_argv(),
        "hosts": [asdict(status) for status in lab.status()],
    }


def serve(lab: Lab, server: socket.socket) -> None:
    """Serve requests until one is `down`."""
    while True:
        peer, _ = server.accept()
        with peer:
            try:
                request = _read_request(peer)
                if request["verb"] == "down":
                    lab.stop()
                    os.unlink(server.getsockname())
                    _say(peer, {})
                    return
                reply = answer(lab, **request)
            except MusterError as error:
                reply = {"error": error.message, "hint": error.hint}
            except Exception as error:  # one failed request must not take the lab down
                traceback.print_exc()
                reply = {"error": f"the lab failed: {error}", "hint": "try to reboot the host: muster lab reboot HOST"}
            _say(peer, reply)


def _read_request(peer: socket.socket) -> dict[str, Any]:
    """The line that a client sends; LabError if it is not a request, or none comes in time."""
    deadline = time.monotonic() + REQUEST_LIMIT
    line = b""
    try:
        while not line.endswith(b"\n") and len(line) < _LARGEST_REQUEST:
            peer.settimeout(max(0.01, deadline - time.monotonic()))
            piece = peer.recv(_LARGEST_REQUEST)
            line += piece or b"\n"
        found = json.loads(line)
    except (OSError, ValueError, RecursionError):
        found = None
    request = cast("dict[str, Any]", found if type(found) is dict else {})
    if type(request.get("verb")) is not str:
        raise LabError("invalid request: it must be a JSON object with the field `verb`", hint="muster lab --help")
    return request


def _say(peer: socket.socket, reply: Mapping[str, object]) -> None:
    try:
        peer.sendall(json.dumps(reply).encode() + b"\n")
    except OSError:
        pass  # the command was interrupted; its request is done


def main(argument: str) -> int:
    """Run a lab until it is stopped."""
    settings: Settings = json.loads(argument)
    folder = os.open(settings["folder"], os.O_RDONLY | os.O_DIRECTORY)
    signal.signal(signal.SIGTERM, _end)
    try:
        with Path(settings["folder"], LOCK).open("w") as lock:
            _take(lock.fileno())
            _hold(settings, folder)
    except MusterError as error:
        _report({"error": error.message, "hint": error.hint})
        return error.exit_code
    return 0


def _hold(settings: Settings, folder: int) -> None:
    Path(settings["folder"], SOCKET).unlink(missing_ok=True)
    with (
        Lab(settings["hosts"], **settings["options"]) as lab,
        socket.socket(socket.AF_UNIX) as server,
    ):
        server.bind(socket_address(folder))
        server.listen()
        _report(describe(lab))
        serve(lab, server)


def _end(signal_number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signal_number)


def _take(lock: int) -> None:
    """Hold the lock for the lifetime of this process, so that a leftover file is not mistaken for a running lab."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LabError("a lab is already running", hint="stop it: muster lab down") from None


def _report(message: Mapping[str, object]) -> None:
    """Report to the command that started this process, then close its pipe, so that its caller does not wait for us."""
    print(json.dumps(message), flush=True)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

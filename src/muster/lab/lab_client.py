"""How commands find the running lab and communicate with its server."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
from pathlib import Path
from typing import Any, cast

from muster import home
from muster.errors import LabError
from muster.lab.lab_server import SOCKET, Description, Settings, socket_address
from muster.own_python import module_argv

START_LIMIT = 150.0
"""Seconds within which the server must report whether the lab started; two more for each host."""

ANSWER_LIMIT = 150.0
"""Timeout of a request in seconds; a reboot takes longest."""


def state_folder() -> Path:
    """This user's directory with the socket of the lab; created if missing."""
    folder = home.state_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def start(hosts: int, **options: Any) -> Description:
    """Start a lab with these options of `Lab`, which outlives this process; return its description."""
    folder = state_folder()
    settings: Settings = {"hosts": hosts, "options": options, "folder": str(folder)}
    with (folder / "lab.log").open("ab") as log:
        server = subprocess.Popen(
            [*module_argv("muster.lab.lab_server"), json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            text=True,
        )
    assert server.stdout is not None
    try:
        with server.stdout as said:
            limit = START_LIMIT + 2 * hosts
            if not select.select([said], [], [], limit)[0]:
                raise LabError(f"the lab did not start within {limit:g} s", hint="try fewer hosts")
            line = said.readline()
    except BaseException:
        server.kill()
        server.wait()
        raise
    if not line:
        raise LabError("the lab server exited during startup", hint=f"see its log: {folder / 'lab.log'}")
    return _checked(line)


def request(verb: str, **arguments: Any) -> Any:
    """Send a request to the server of the running lab and return its reply, for `status` a `Description`."""
    handle = os.open(state_folder(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(ANSWER_LIMIT)
            peer.connect(socket_address(handle))
            peer.sendall(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
            with peer.makefile("r") as lines:
                line = lines.readline()
    except (FileNotFoundError, ConnectionError):
        (state_folder() / SOCKET).unlink(missing_ok=True)
        raise NoLab from None
    except TimeoutError:
        raise LabError(f"the lab did not answer within {ANSWER_LIMIT:g} s", hint="muster lab down") from None
    finally:
        os.close(handle)
    if not line:
        raise NoLab
    return _checked(line)


def _checked(line: str) -> Any:
    try:
        reply: Any = json.loads(line)
    except (ValueError, RecursionError):
        reply = None
    if type(reply) is not dict:
        raise LabError("the lab server sent an invalid answer", hint="muster lab down")
    reply = cast("dict[str, Any]", reply)
    if "error" in reply:
        raise LabError(str(reply["error"]), hint=reply.get("hint"))
    return reply


class NoLab(LabError):
    """No lab is running."""

    def __init__(self) -> None:
        super().__init__("no lab is running", hint="start one with four hosts: muster lab up 4")

"""Startup code of an agent whose transport has no stdin: connects to the controller and receives the rest from it.

This file is sent as text in the order and runs as the main module of `python -c`, so it imports nothing from this
package. Each failure has its own exit code, because PBS reports nothing else.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from typing import NoReturn, TypedDict

    class Order(TypedDict):
        """Everything that an agent needs to connect to the controller, with this file as `code`."""

        code: str
        addresses: Sequence[str]
        port: int
        certificate: str
        token: str
        key_from: Sequence[str]
        killed_at_once: bool
        limit: float
        is_patient: bool
        protocol: int


COMMAND = (
    'import sys;sys.path[:1]==[""]and sys.path.pop(0);import json,os;'
    "f=sys.argv[1:2];f==[]or os.access(f[0],4)or sys.exit(117);"
    'order=json.loads(open(f[0]).read()if f else os.environ.pop("MUSTER_DIAL"));exec(order["code"])'
)
"""The code for `python -c`, which imports nothing from the working directory.

The order is in MUSTER_DIAL or in the file named by the first argument.
"""

NO_ORDER = 117
"""Exit code: this host cannot read the file with the order."""
OLD_PYTHON = 118
"""Exit code: the interpreter is too old for the agent."""
NO_WAY = 119
"""Exit code: this host cannot reach the controller's port."""

_TRY = 3.0
"""Timeout in seconds per address; long enough for one lost SYN."""

_REJECTED = 2.0
"""Seconds until an agent that is patient dials again after the controller has rejected it."""

_REFUSED = 3.0
"""Seconds after which refusals by every address mean that the controller, which listened before, has exited."""


def dial(order: Order) -> ssl.SSLSocket:
    """Connect to the controller at one of its addresses; requires the certificate in the order."""
    import ssl

    context = ssl.create_default_context(cadata=order["certificate"])
    begin = time.monotonic()
    give_up, not_refused = begin + order["limit"], begin
    problems: dict[str, str] = {}
    while True:
        for address in order["addresses"]:
            try:
                plain = socket.create_connection((address, order["port"]), timeout=_TRY)
                # A controller that rejects an agent says so; a connection that just ends made room for another one.
                return context.wrap_socket(plain, server_hostname="muster", suppress_ragged_eofs=False)
            except (OSError, ValueError) as error:
                problems[address] = getattr(error, "strerror", None) or str(error)
                if getattr(error, "errno", None) not in (errno.ECONNREFUSED, errno.ENETUNREACH):
                    not_refused = time.monotonic()
        if time.monotonic() > min(give_up, not_refused + _REFUSED):
            tried = ", ".join("%s (%s)" % (address, why.lower()) for address, why in problems.items())
            leave(NO_WAY, "%s cannot reach muster at port %d of %s" % (own_name(), order["port"], tried))
        time.sleep(0.2)


def leave(code: int, words: str) -> NoReturn:
    """Exit with a message on stderr and an exit code."""
    sys.stderr.write("muster: %s\n" % words)
    sys.stderr.flush()
    os._exit(code)


def own_name() -> str:
    """This host's name without its domain."""
    return socket.gethostname().partition(".")[0]


def own_key(order: Order) -> str:
    """This agent's key: from the command line, or from the launcher's variables."""
    if len(sys.argv) > 2:
        return sys.argv[2]
    return next((os.environ[name] for name in order["key_from"] if os.environ.get(name)), own_name())


def hello(order: Order) -> dict[str, object]:
    """The first line of a connection: which agent this is."""
    return {
        "t": "hello",
        "protocol": order["protocol"],
        "token": order["token"],
        "key": own_key(order),
        "host": own_name(),
    }


def stand_aside(order: Order) -> None:
    """Continue as a child in its own session, and leave this process to its launcher.

    When MPI aborts, hydra kills the processes it started at once, and the last messages of the ranks would be lost.
    """
    import ctypes
    import signal

    child = os.fork()
    if not child:
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGHUP, 0, 0, 0)  # PR_SET_PDEATHSIG: the agent then ends its ranks and exits
        return

    def pass_on(number: int, frame: object) -> None:
        try:
            os.kill(child, number)
        except OSError:
            pass  # it has just exited

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forwarded = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    for number in forwarded:
        signal.signal(number, pass_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        os._exit(code)
    if -code in forwarded:
        os._exit(128 - code)
    # The launcher now ends all other agents, and does not say on which host this one was.
    leave(128 - code, "the agent of rank %s on %s was killed by signal %d" % (own_key(order), own_name(), -code))


def enter(order: Order, space: dict[str, object]) -> None:
    """Identify this agent, then run the code that the controller sends, with the connection as `channel`."""
    if sys.version_info < (3, 9):
        leave(OLD_PYTHON, "Python 3.9 or newer is required, %s has %d.%d" % (own_name(), *sys.version_info[:2]))
    if order.get("killed_at_once"):
        stand_aside(order)
    give_up = time.monotonic() + order["limit"]
    while True:
        channel = dial(order)
        channel.settimeout(order["limit"])
        try:
            line = introduce(channel, hello(order))
            if line:
                break
            rejected = "the controller rejected the agent on %s with the key `%s`" % (own_name(), own_key(order))
            if not order.get("is_patient") or time.monotonic() > give_up:
                leave(NO_WAY, rejected)
            time.sleep(_REJECTED)
        except OSError as error:
            if time.monotonic() > give_up:
                leave(NO_WAY, "%s cannot stay connected to muster: %s" % (own_name(), error))
        channel.close()
        time.sleep(0.2)
    channel.suppress_ragged_eofs = True  # type: ignore[attr-defined]
    space.update(channel=channel, take=channel.recv, give=channel.sendall)
    exec(line, space)


def introduce(channel: ssl.SSLSocket, first: dict[str, object]) -> bytes:
    """Send the first line; returns that of the controller, or nothing if it rejects the agent.

    Raises OSError if the connection ends otherwise.
    """
    channel.sendall(json.dumps(first).encode() + b"\n")
    line = b""
    while not line.endswith(b"\n"):
        byte = channel.recv(1)
        if not byte:
            return b""
        line += byte
    return line

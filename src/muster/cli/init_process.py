"""Process 1 of a container: passes signals on to `muster run`, and reaps every process that has lost its parent.

The kernel gives orphans to process 1, and drops signals for it that have no handler.
"""

from __future__ import annotations

import os
import signal
import time

from muster.shared.bootstrap import COMMAND

_PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)

_FOLLOWERS_LIMIT = 5.0
"""Seconds for them to print the last lines of the job."""

_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
"""Signals that a terminal sends to all processes of the foreground."""


def continue_below_init() -> None:
    """Continue in a child, if this is process 1; it then waits for the child, and exits as the child did."""
    if os.getpid() != 1:
        return
    child = os.fork()
    if not child:
        return
    at_terminal = os.isatty(0)

    def pass_on(number: int, frame: object) -> None:
        if not (at_terminal and number in _FROM_TERMINAL):
            try:
                os.kill(child, number)
            except ProcessLookupError:
                pass  # it has just exited

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            _let_followers_end()
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _let_followers_end() -> None:
    """Wait for commands such as `muster logs -f` that other machines run here: they die with process 1."""
    deadline = time.monotonic() + _FOLLOWERS_LIMIT
    while time.monotonic() < deadline and any(map(_is_follower, filter(str.isdigit, os.listdir("/proc")))):
        time.sleep(0.1)


def _is_follower(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return COMMAND.encode() in file.read().split(b"\0")
    except OSError:
        return False  # it has ended

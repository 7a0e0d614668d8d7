"""Process 1 of a container: passes signals on to `muster run`, and reaps every process that has lost its parent.

The kernel gives orphans to process 1, and drops signals for it that have no handler.
"""

from __future__ import annotations

import os
import signal

_PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)

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
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)

"""The end of an agent whose exit code is that of the job, as in the pods of a Kubernetes Job."""

from __future__ import annotations

import os
import time

from ..shared import light_signal as signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LOST_CONTROLLER = 125
"""The exit code if the controller did not say how the job ended."""

_LINGER = 10.0
"""Seconds until an agent exits after the job has failed.

The first pod of a Job that fails may end the others, whose logs are then lost. That of the controller has all output,
so it has to be the first.
"""


def exit_with_job(code: int, *, at_once: bool) -> NoReturn:
    """Exit with the exit code of the job; if it failed, some time later, or when SIGTERM comes."""
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(code))
    if code and not at_once:
        time.sleep(_LINGER)
    os._exit(code)

"""The faults that are injected into running jobs, and what undoes them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.experiment import Failed
from benchmarks.recovery.stage import Trial
from muster.errors import LabError

FILL_ATTEMPTS = 5


def _nothing(trial: Trial, host: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of a host."""

    name: str
    title: str
    strike: Callable[[Trial, str], float]
    """Inject it, and return the time of the moment before."""
    undo: Callable[[Trial, str], None] = _nothing
    """Let the host come back."""
    loses_host: bool = True
    """Whether the ranks of the host cannot run there any more."""
    returns: bool = True
    """Whether the host can be used again after `undo`."""


def now(action: Callable[[], object]) -> float:
    """Do something, and return the time of the moment before."""
    begin = time.time()
    action()
    return begin


def fill_disk(trial: Trial, host: str) -> float:
    """Fill the disk of a host while ranks write to it, which may need several attempts."""
    problem = ""
    for _ in range(FILL_ATTEMPTS):
        try:
            return now(lambda: trial.stage.lab.fill_disk(host))
        except LabError as error:
            problem = error.message
    raise Failed(problem)


def kill(pid: int) -> float:
    """Kill a process."""
    return now(lambda: os.kill(pid, signal.SIGKILL))


FAULTS = (
    Fault(
        name="power",
        title="power cut",
        strike=lambda trial, host: now(lambda: trial.stage.lab.power_off(host)),
        undo=lambda trial, host: trial.stage.lab.reboot(host),
    ),
    Fault(
        name="cable",
        title="cable unplugged",
        strike=lambda trial, host: now(lambda: trial.stage.lab.cut(host)),
        undo=lambda trial, host: trial.stage.lab.heal(host),
    ),
    Fault(name="agent", title="agent killed", strike=lambda trial, host: kill(trial.agent_pid(host))),
    Fault(
        name="zygote",
        title="zygote killed",
        strike=lambda trial, host: kill(trial.zygote_pid(host)),
        loses_host=False,
    ),
    Fault(
        name="frozen",
        title="host frozen",
        strike=lambda trial, host: now(lambda: trial.stage.lab.freeze(host)),
        undo=lambda trial, host: trial.stage.lab.thaw(host),
    ),
    Fault(
        name="disk",
        title="disk full",
        strike=fill_disk,
        undo=lambda trial, host: trial.stage.lab.heal(host),
        returns=False,
    ),
    Fault(
        name="rank",
        title="rank killed",
        strike=lambda trial, host: kill(trial.rank_pid(host)),
        loses_host=False,
    ),
)

FAULT = {fault.name: fault for fault in FAULTS}

"""Runs `muster run` on a login node: salloc gets an allocation and runs the same command inside it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence

from muster.engines.slurm.environment import in_slurm_allocation
from muster.errors import MusterError, UsageError
from muster.own_python import module_argv
from muster.shared import processes

_AGAIN_AFTER = 1.0
"""Seconds after which salloc gets a signal again: it only notes one that comes before it knows the id of its job."""


def salloc(slurm_args: str, argv: Sequence[str], target: str, *, dry_run: bool, detach: bool = False) -> int:
    """Have salloc get an allocation and run `muster ARGV` in it; the allocation is released however either ends."""
    if detach:
        raise UsageError(
            "--detach: an allocation from --slurm-args would end with this command",
            hint="use `muster submit --slurm` to queue the job, or --detach inside a salloc shell",
        )
    if in_slurm_allocation(os.environ):
        raise UsageError(
            f"--slurm-args requests an allocation, but this is already inside allocation {os.environ['SLURM_JOB_ID']}",
            hint="omit --slurm-args to use its hosts",
        )
    try:
        wanted = shlex.split(slurm_args)
    except ValueError as error:
        raise UsageError(f"--slurm-args {slurm_args!r}: {str(error).lower()}", hint="check the quotes") from None
    inside = [*module_argv("muster"), *_without(argv, "--slurm-args")]
    command = salloc_argv(wanted, os.path.basename(target), inside)
    if dry_run:
        print(shlex.join(command))
        return 0
    if shutil.which("salloc") is None:
        raise MusterError(
            "--engine slurm: `salloc` not found on this machine", hint="run it on a login node of the cluster"
        )
    return _in_our_place(command)


def salloc_argv(slurm_args: Sequence[str], name: str, command: Sequence[str]) -> list[str]:
    """The command line that gets an allocation, runs `command` on this machine inside it, and releases it."""
    # The user's options come last and take precedence.
    return ["salloc", f"--job-name={name}", *slurm_args, *command]


def _in_our_place(command: Sequence[str]) -> int:
    """Run salloc in place of this process; it ends with this process, even on SIGKILL.

    Otherwise salloc would leave its job in the queue, or keep its hosts until the time limit.
    """
    me = os.getpid()

    def become_ours() -> None:
        processes.die_with(me, signal.SIGTERM)
        if not os.isatty(0):  # on a terminal, salloc creates its own process group
            os.setpgid(0, 0)  # so that it gets Ctrl-C only once, from this process

    process = subprocess.Popen(command, preexec_fn=become_ours)
    ending: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        # To the `muster run` in the allocation, which shuts down cleanly; salloc itself would cancel the job.
        inside = processes.descendants(process.pid)[:1]
        processes.kill(inside or [process.pid], number)
        if not inside:
            ending.append(number)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_AFTER)

    signal.signal(signal.SIGALRM, lambda number, frame: pass_on(ending[-1], frame))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, pass_on)
    code = process.wait()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return 128 + ending[0] if ending else code if code >= 0 else 128 - code


def _without(argv: Sequence[str], option: str) -> list[str]:
    """The command line without one option and its value; `_` and `-` are equivalent in its name."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, _ = word.partition("=")
        if name.replace("_", "-") == option:
            if not equals:
                next(words)
            return [*kept, *words]
        kept.append(word)
    return kept

"""An allocation of one's own, from a login node: salloc gets it, and runs `muster run` inside it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence

from muster.allocations import in_slurm_allocation
from muster.errors import MusterError, UsageError
from muster.transports.slurm import salloc_argv


def salloc(slurm_args: str, argv: Sequence[str], target: str, *, dry_run: bool) -> int:
    """Replace this process by salloc, which gives the allocation back when `muster run` ends, however it ends."""
    if in_slurm_allocation(os.environ):
        raise UsageError(
            f"--slurm-args ask for an allocation, and this is one already ({os.environ['SLURM_JOB_ID']})",
            hint="leave them out to use its hosts",
        )
    try:
        wanted = shlex.split(slurm_args)
    except ValueError as error:
        raise UsageError(f"--slurm-args {slurm_args!r}: {str(error).lower()}", hint="check the quotes") from None
    inside = [sys.executable, "-m", "muster", "run", *_without(argv, "--slurm-args")]
    command = salloc_argv(wanted, os.path.basename(target), inside)
    if dry_run:
        print(shlex.join(command))
        return 0
    if shutil.which("salloc") is None:
        raise MusterError(
            "--engine slurm: there is no `salloc` on this machine", hint="run it on a login node of the cluster"
        )
    os.execvp(command[0], command)


def _without(argv: Sequence[str], option: str) -> list[str]:
    """The command line without one option, which takes a value."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word == option:
            next(words)
            return [*kept, *words]
        if word.startswith(f"{option}="):
            return [*kept, *words]
        kept.append(word)
    return kept

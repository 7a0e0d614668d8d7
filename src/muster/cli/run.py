"""`muster run`: read the command line, then run the job or print its plan."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING

from muster.cli.arguments import Parser, natural, port, seconds
from muster.cli.assembly import Assembly, assembled, make_job, shown, staged
from muster.cli.hints import misplaced
from muster.cli.options import add_debug, add_engine, add_network, add_where, allocate
from muster.cli.script_command import read_command
from muster.cli.torchrun import add_torchrun
from muster.engines.choice import Choice, this_host
from muster.environment import CARRIED
from muster.errors import UsageError
from muster.job import Job

if TYPE_CHECKING:
    from muster.cli.detach import Background

_MOST_RANKS = 1_000_000

EXAMPLES = f"""\
examples:
  muster run train.py --lr 0.1                       every GPU of this machine
  muster run --nproc 4 train.py                      four processes on a CPU
  muster run -H gpu[01-04]:8,box:2 train.py          five machines over ssh, 34 ranks
  muster run -H big:0,2,5 train.py                   three GPUs of one machine
  muster run --hostfile hosts.txt -m mypkg.train     hosts from an MPI or DeepSpeed hostfile
  muster run train.py                                inside a Slurm or PBS job: all its hosts
  muster run --engine slurm --slurm-args "-N4 --gpus-per-node=2" train.py
  muster run --engine mpi -H a:2,b:2 train.py        ranks started by mpirun, so that MPI works in them
  muster run --image pytorch/pytorch -H a,b train.py inside a container on each host
  muster run --lab 2 --nproc 2 train.py              two virtual hosts on this machine
  muster run --detach train.py                       in the background; muster attach, logs, top and stop find it
  muster run --page train.py                         with a page that shows the job in a browser
  muster run --dry-run -H a:8,b:8 train.py           print the plan, run nothing
  muster run torchrun --nproc-per-node 4 train.py    a command line of torchrun or python, as it is

Muster's options go before the script, the script's own after it. torchrun's options work here as well.
Underscores in options are the same as dashes: --dry_run.

{fill("Carried to other hosts without being asked: " + ", ".join(CARRIED) + ".", 105)}

Exit code: that of the first rank that failed (128 + n if signal n ended it); 2 for a wrong command line;
124 when --on-hang kill ended the job; 125 when Muster or a host failed, not the script.
"""


def parser() -> Parser:
    """The options of `muster run`."""
    p = Parser(
        prog="muster run",
        usage="muster run [options] SCRIPT [its arguments]\n       muster run [options] -m MODULE [its arguments]",
        description="Run a PyTorch script, unmodified, on this machine or on many hosts.",
        epilog=EXAMPLES,
    )
    add_where(p)
    add_engine(p)
    _add_what(p)
    add_network(p)
    _add_screen(p)
    add_torchrun(p)
    p.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return p


def _add_what(p: Parser) -> None:
    """What runs, and what happens when it fails, hangs or is stopped."""
    what = p.add_argument_group("what")
    what.add_argument("-m", dest="module", action="store_true", help="run a module, as `python -m` does")
    what.add_argument("--env", metavar="NAME[=VALUE]", action="append", default=[], help="set a variable in every rank")
    what.add_argument(
        "--sync",
        action="store_true",
        help="send this folder (what git would track) to each host and run there",
    )
    what.add_argument(
        "--preload",
        metavar="MODULE",
        action="append",
        default=[],
        help="import this once per host, besides torch",
    )
    what.add_argument(
        "--no-zygote",
        action="store_true",
        help="start each rank as a fresh interpreter; slower, shares nothing",
    )
    what.add_argument(
        "--no-watch",
        action="store_true",
        help="install no hooks and no thread in the ranks; hangs and stragglers are then not detected",
    )
    what.add_argument(
        "--no-check",
        action="store_true",
        help="do not look at the hosts while the job starts (`muster check` looks closer)",
    )
    what.add_argument(
        "--restarts",
        metavar="N",
        type=natural,
        default=0,
        help="after a failure start all ranks again, up to N times",
    )
    what.add_argument(
        "--grace",
        metavar="DURATION",
        type=seconds,
        default=5.0,
        help="time for ranks to end after Ctrl-C or SIGTERM, such as 30s or 2m (default: 5s)",
    )
    what.add_argument(
        "--hang-after",
        metavar="DURATION",
        type=seconds,
        default=30.0,
        help="report a hang after this time without progress, such as 90s or 5m (default: 30s; 0: never)",
    )
    what.add_argument(
        "--on-hang",
        choices=("report", "kill"),
        default="report",
        help="what to do then: report it and wait (default), or also end the job with exit code 124",
    )
    what.add_argument(
        "--detach",
        action="store_true",
        help="go on in the background, also after logout: prints the job's id when its ranks have started",
    )


def _add_screen(p: Parser) -> None:
    """What is shown of it."""
    screen = p.add_argument_group("screen")
    screen.add_argument("--dry-run", action="store_true", help="print the plan and each command line, run nothing")
    screen.add_argument("--quiet", action="store_true", help="no words of Muster's own unless something fails")
    add_debug(screen)
    screen.add_argument(
        "--only-rank", metavar="RANKS", type=_ranks, help="show only these ranks (0 or 0,4-7); logs keep all"
    )
    screen.add_argument(
        "--page", action="store_true", help="serve a page that shows the job in a browser, and say where"
    )
    screen.add_argument("--page-port", metavar="PORT", type=port, default=0, help="its port (default: a free one)")


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the script with its arguments, if one is named."""
    p = parser()
    options = p.parse_args(argv)
    return options, read_command(p, options)


def main(argv: list[str]) -> int:
    """Run the job the command line describes and return its exit code."""
    begin = time.time()
    options, command = parse(argv)
    if not command:
        raise UsageError(
            "no script to run",
            hint="for example `muster run train.py --lr 0.1`; `muster run --help` shows more",
        )
    if options.slurm_args is not None:
        if options.detach:
            raise UsageError(
                "--detach: an allocation from --slurm-args would end with this command",
                hint="`muster submit --slurm` waits in the queue without you; inside salloc --detach works",
            )
        # Finds a missing script or a bad option now, not after hours in the queue.
        make_job(options, command, Choice(engine="slurm", hosts=(this_host(),)))
        return allocate(options, "run", argv, command[0])
    if options.detach and not options.dry_run:
        from muster.cli.detach import detached

        return detached(lambda background: _run(options, command, begin, background))
    return _run(options, command, begin)


def _run(options: argparse.Namespace, command: list[str], begin: float, background: Background | None = None) -> int:
    with assembled(options, command) as assembly:
        hint = _misplaced(assembly.job)
        assembly = replace(assembly, notes=(*assembly.notes, *([hint] if hint else [])))
        if options.dry_run:
            return dry_run(assembly, options)
        return run(assembly, options, begin, background)


def _misplaced(job: Job) -> str:
    from muster.controller.source_code import find_script

    script = find_script(job)
    return misplaced(parser(), job.target, job.args, script.text) if script is not None and job.args else ""


def run(assembly: Assembly, options: argparse.Namespace, begin: float, background: Background | None = None) -> int:
    """Run the job with its screen; without one that is a terminal, if it is in the background."""
    from muster.controller.foreground import run_job

    if background is not None:
        allocation = assembly.choice.allocation
        background.settle(assembly.job.id, f"the job ends with {allocation} at the latest" if allocation else "")
    with staged(assembly, options, begin) as make_controller, shown(make_controller, options) as make:
        return run_job(make, background.started if background is not None else None, stdin=True)


def dry_run(assembly: Assembly, options: argparse.Namespace) -> int:
    """Print what would be done."""
    from muster.controller.dry_run import describe

    sys.stdout.write(describe(assembly.job, assembly.engine, nproc=options.nproc))
    if not options.quiet:
        sys.stderr.writelines(f"muster: {note}\n" for note in assembly.notes)
    return 0


def _ranks(text: str) -> frozenset[int]:
    ranks: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise argparse.ArgumentTypeError(f"`{part}` is not a rank or a range of ranks, such as 0,4-7")
        if int(last or first) > _MOST_RANKS:
            raise argparse.ArgumentTypeError(f"`{part}`: there are no ranks above {_MOST_RANKS}")
        ranks |= set(range(int(first), int(last or first) + 1))
    return frozenset(ranks)

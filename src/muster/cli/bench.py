"""`muster bench`: benchmarks collectives and links between hosts, or how a training script scales."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.api.arguments import Parser, natural, option
from muster.api.hints import refuse_misplaced
from muster.api.run_options import (
    add_debug,
    add_engine,
    add_env,
    add_network,
    add_quiet,
    add_where,
    allocate,
    asking_for_allocation,
    parse_options,
    spec_of,
)
from muster.bench.bandwidth import OPERATIONS
from muster.bench.sizes import read_size, sizes_between
from muster.errors import UsageError
from muster.text import size_text

if TYPE_CHECKING:
    from muster.bench.collect import Collector
    from muster.bench.listen import ListeningScreen
    from muster.bench.measurements import Report

CALL_LIMIT = 2.0
"""Maximum duration of one call in seconds; larger sizes are skipped unless --max includes them."""

LARGEST = 1 << 30

_CHOICES = (*OPERATIONS, "pairs")

EXAMPLES = """\
examples:
  muster bench                                  every GPU of this machine
  muster bench -H gpu[01-04]:8                  four hosts over ssh, all pairs of hosts
  muster bench -H a,b --backend gloo            without GPUs
  muster bench -H a,b --only all-reduce,pairs --min 1M --max 1G --factor 2
  muster bench --lab 2                          two virtual hosts on this machine
  muster bench -H a,b --json > bench.json
  muster bench -H a:4,b:4 --scaling             a small training step on 1, 2, 4 and 8 ranks
  muster bench -H a:4,b:4 --scaling train.py --batch-size 256

Columns and bandwidth factors are those of nccl-tests. Hosts need Python and torch, not Muster.
--scaling reads the last rate that rank 0 prints: `1234.5 images/s`, samples/s or tokens/s of all ranks together.
Options after the script belong to the script.

Exit code: 0; 1 if an operation produced wrong data or a rank failed; otherwise as for `muster run`.
"""


def parser() -> Parser:
    """Return the parser of `muster bench`."""
    p = Parser(
        prog="muster bench",
        usage="muster bench [options]\n       muster bench [options] --scaling [[-m] SCRIPT [its arguments]]",
        description="Benchmark collectives and links, compare them with what is expected, and find outliers.",
        epilog=EXAMPLES,
    )
    add_where(p)
    add_engine(p)
    what = p.add_argument_group("measurements")
    option(what, "--backend", "default: nccl with GPUs, else gloo", choices=("gloo", "nccl"), default="")
    about = f"comma-separated list of {', '.join(_CHOICES)} (default: all)"
    option(what, "--only NAMES", about, type=_names, default=_CHOICES)
    option(what, "--min SIZE", "smallest size: 8, 64K, 1M (default: 8)", type=read_size, default=8)
    about = f"largest size (default: {size_text(LARGEST)}, or less if a call would take more than {CALL_LIMIT:g} s)"
    option(what, "--max SIZE", about, type=read_size)
    option(what, "--factor N", "factor between consecutive sizes (default: 8)", type=_factor, default=8)
    add_env(what)
    scaling = p.add_argument_group("scaling")
    option(scaling, "--scaling", "run a script on 1, 2, 4 … ranks and compare the rates it prints")
    option(scaling, "-m", "SCRIPT is a module, as for `python -m`", dest="module")
    about = "the script's option for the batch size per rank, divided for strong scaling (default: --batch-size)"
    option(scaling, "--split OPTION", about, default="--batch-size")
    add_network(p)
    out = p.add_argument_group("output")
    option(out, "--out DIR", "directory for the JSON file and the figure (default: the job directory)", type=Path)
    option(out, "--json", "print the measurements as JSON instead of tables")
    option(out, "--dry-run", "print the plan and all commands without running anything")
    add_quiet(out)
    add_debug(out)
    p.taking_options.add("--split")
    p.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return p


def main(argv: list[str]) -> int:
    """Run the benchmark and return the exit code."""
    begin = time.time()
    options = parse_options(parser(), argv, "bench")
    if (options.command or options.module) and not options.scaling:
        what = options.command[0] if options.command else "-m"
        raise UsageError(
            f"muster bench: unexpected `{what}`", hint=f"add --scaling to measure how a script scales: --scaling {what}"
        )
    if options.command and os.path.isfile(options.command[0]):
        refuse_misplaced(parser(), argv, options.command, Path(options.command[0]).read_text(errors="replace"))
    engine = asking_for_allocation(options)
    if engine is not None:
        return allocate(engine, options, spec_of(options, ()), ["bench", *argv], "muster-bench")
    if options.scaling:
        from muster.cli.scaling import scale

        return scale(options, begin)
    return collectives(options, begin)


def collectives(options: argparse.Namespace, begin: float) -> int:
    """Measure operations and pairs."""
    from muster.api.prepared import lab_hosts
    from muster.bench.collect import Collector
    from muster.bench.rank_command import collectives
    from muster.cli.bench_run import rank_side, run_once, sent

    operations = [name for name in OPERATIONS if name in options.only]
    command = collectives(
        backend=options.backend,
        operations=operations,
        sizes=sizes_between(options.min, options.max or LARGEST, options.factor),
        pairs="pairs" in options.only,
        call_limit=None if options.max else CALL_LIMIT,
    )
    collector = Collector()
    live = _Live(collector, show=not options.json)
    spec = spec_of(options, command, check=False)
    with lab_hosts(spec, dry_run=options.dry_run) as located, rank_side() as code:
        ran = run_once(sent(located, code), live.hear, begin, dry_run=options.dry_run)
    if ran.code != 0 or options.dry_run:
        return ran.code
    return conclude(collector.report(ran.hosts), options, ran.folder)


def conclude(report: Report, options: argparse.Namespace, folder: Path) -> int:
    """Print matrices and conclusions, and write the files."""
    from muster.bench.conclusion import verdict
    from muster.bench.figure import bandwidth_figure
    from muster.bench.measurement_table import matrices
    from muster.cli.bench_run import publish

    lines = matrices(report.pairs, report.ranks)
    publish("bench", report.as_data(), lines, verdict(report), bandwidth_figure(report), options, folder)
    return 1 if any(row.wrong for row in report.rows) else 0


class _Live:
    """Prints rows as they are measured, and the current measurement."""

    def __init__(self, collector: Collector, *, show: bool) -> None:
        self._collector = collector
        self._show = show
        self._operation = ""

    def hear(self, screen: ListeningScreen, rank: int, text: str) -> bool:
        """Read a line of a rank; return whether it is a measurement."""
        record = self._collector.take(text)
        if record is None:
            return False
        if record["t"] == "at":
            self._progress(screen, record)
        elif record["t"] == "row" and self._show:
            self._row(screen)
        return True

    def _row(self, screen: ListeningScreen) -> None:
        from muster.bench.measurement_table import header, row_line

        row = self._collector.rows[-1]
        if row.operation != self._operation:
            self._operation = row.operation
            for line in header(row.operation):
                screen.print(line)
        screen.print(row_line(row))

    def _progress(self, screen: ListeningScreen, record: dict[str, Any]) -> None:
        size = f" of {size_text(record['size'])}" if "size" in record else ""
        first = (
            record["what"] != self._operation and (not self._show or record["what"] == "pairs") and not record["done"]
        )
        if screen.is_live or first:
            screen.status(f"measuring {record['what']}{size} ({record['done']} of {record['of']} done)")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in _CHOICES:
            raise argparse.ArgumentTypeError(f"must be some of {', '.join(_CHOICES)}, got `{name}`")
    return names


def _factor(text: str) -> int:
    factor = natural(text)
    if factor < 2:
        raise argparse.ArgumentTypeError(f"must be at least 2, got `{text}`")
    return factor

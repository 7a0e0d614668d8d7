"""`muster bench --scaling`: runs a script on 1, 2, 4 … ranks."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from muster.api.prepared import lab_hosts
from muster.api.run_options import spec_of
from muster.bench.figure import efficiency_figure
from muster.bench.rank_command import training_step
from muster.bench.scaling_curve import (
    Kind,
    Rate,
    Run,
    Scaling,
    batch_of,
    first_ranks,
    rank_counts,
    read_rate,
    sentences,
    table,
    with_batch,
)
from muster.cli.bench_run import Ran, publish, rank_side, run_once, sent
from muster.cli.recipes import find_recipes
from muster.errors import MusterError, UsageError
from muster.text import count as counted

if TYPE_CHECKING:
    from muster.bench.listen import ListeningScreen
    from muster.hosts import Host
    from muster.spec import RunSpec

BATCH = 64
"""Batch size per rank of the built-in training step."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The program that every run starts."""

    command: tuple[str, ...]
    """The script or module with its arguments; empty for the built-in training step."""
    module: bool
    split: str
    backend: str
    batch: int | None
    """Batch size per rank; None if the command does not contain it, and then only weak scaling is measured."""

    @property
    def name(self) -> str:
        """Its name in tables and figures."""
        return " ".join(self.command) or "the built-in training step"

    def words(self, kind: Kind, ranks: int) -> list[str]:
        """Return the command for a number of ranks."""
        batch = self.share(kind, ranks)
        if not self.command:
            return training_step(backend=self.backend, batch_size=batch or BATCH)
        return with_batch(self.command, self.split, batch) if batch is not None else list(self.command)

    def share(self, kind: Kind, ranks: int) -> int | None:
        """Return the batch size per rank."""
        return self.batch // ranks if self.batch is not None and kind == "strong" else self.batch


def scale(options: argparse.Namespace, begin: float) -> int:
    """Run the script with all ranks, then with fewer, and print how the rates scale."""
    work = work_of(options)
    options.module = work.module
    spec = spec_of(options, (), check=False)
    with lab_hosts(spec, dry_run=options.dry_run) as located, nullcontext() if work.command else rank_side() as code:
        runner = _Runner(options=options, spec=sent(located, code) if code else located, work=work, begin=begin)
        if options.dry_run:
            return runner.start("weak", 0, None)[0].code
        return runner.all_runs()


def work_of(options: argparse.Namespace) -> Work:
    """Return the script, module or recipe on the command line, or the built-in training step."""
    command: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    module = options.module
    if options.module and not command:
        raise UsageError("muster bench --scaling -m: no module given", hint="`muster recipes` lists some")
    if command and not module and not os.path.exists(command[0]) and command[0] in find_recipes():
        command, module = [f"muster.recipes.{command[0]}", *command[1:]], True
    return Work(
        command=tuple(command),
        module=module,
        split=options.split,
        backend=options.backend,
        batch=batch_of(command, options.split) if command else BATCH,
    )


@dataclass(frozen=True, kw_only=True)
class _Runner:
    """One `--scaling`."""

    options: argparse.Namespace
    spec: RunSpec
    work: Work
    begin: float

    def all_runs(self) -> int:
        """Run with all ranks first, which shows how many there are, then with 1, 2, 4 … of them."""
        first, printed = self.start("weak", 0, None)
        if first.code != 0:
            return first.code
        hosts = first.planned
        total = sum(host.slots or 0 for host in hosts)
        alike = self.with_threads_of(first)
        rate = self.rate_of(printed, first)
        runs = [self.run_of("weak", total, hosts, rate)]
        notes: list[str] = []
        for kind, count in self.left(total, notes):
            ran, printed = alike.start(kind, count, first_ranks(hosts, count))
            if ran.code != 0:
                return ran.code
            runs.append(self.run_of(kind, count, first_ranks(hosts, count), self.rate_of(printed, ran)))
        scaling = Scaling(command=self.work.name, thing=rate.thing, runs=tuple(runs), notes=tuple(notes))
        self.conclude(scaling, first.folder)
        return 0

    def left(self, total: int, notes: list[str]) -> list[tuple[Kind, int]]:
        """Return the runs after the first one; adds the reasons for skipped runs to `notes`."""
        counts = rank_counts(total)
        weak: list[tuple[Kind, int]] = [("weak", count) for count in counts[:-1]]
        batch = self.work.batch
        if total == 1:
            notes.append("With one rank, there is nothing to compare.")
        elif batch is None:
            notes.append(
                f"Strong scaling was not measured: {self.work.name} has no {self.work.split} to divide "
                "(choose another option with --split)."
            )
        shared: list[tuple[Kind, int]] = []
        for count in counts[1:]:
            if batch is not None and batch % count:
                notes.append(f"Strong scaling skipped {count} ranks: a batch of {batch} does not divide evenly.")
            elif batch is not None:
                shared.append(("strong", count))
        return [*weak, *shared]

    def start(self, kind: Kind, count: int, hosts: Sequence[Host] | None) -> tuple[Ran, Rate | None]:
        """Run the script once, on all hosts if `hosts` is None; also returns the last rate that rank 0 printed."""
        begin = self.begin if hosts is None else time.time()
        words = self.work.words(kind, count or 1)
        if hosts is not None and not self.spec.quiet:
            sys.stderr.write(f"muster: {kind} scaling with {counted(count, 'rank')}\n")
        spec = replace(self.spec, target=words[0], args=tuple(words[1:]))
        printed: Rate | None = None

        def hear(screen: ListeningScreen, rank: int, text: str) -> bool:
            nonlocal printed
            printed = (read_rate(text) if rank == 0 else None) or printed
            return True  # the log files keep the ranks' output

        ran = run_once(spec, hear, begin, hosts=hosts, dry_run=self.options.dry_run)
        return ran, printed

    def with_threads_of(self, first: Ran) -> _Runner:
        """Give ranks in later runs as many threads as in the first, even if fewer ranks share a host."""
        threads = {place["threads"] for place in first.plan["hosts"]}
        if threads == {0} or len(threads) > 1:
            return self
        env = {**self.spec.env, "OMP_NUM_THREADS": str(threads.pop())}
        return replace(self, spec=replace(self.spec, env=env))

    def rate_of(self, printed: Rate | None, ran: Ran) -> Rate:
        """Return the rate that the script printed; MusterError if it printed none."""
        if printed is None:
            raise MusterError(
                f"{self.work.name} printed no rate on rank 0 (its output is in {ran.folder})",
                hint="print the rate of all ranks together as `1234.5 images/s`, samples/s or tokens/s",
            )
        return printed

    def run_of(self, kind: Kind, count: int, hosts: Sequence[Host], rate: Rate) -> Run:
        """Return the data of a run."""
        return Run(kind=kind, ranks=count, hosts=len(hosts), batch=self.work.share(kind, count), rate=rate.value)

    def conclude(self, scaling: Scaling, folder: Path) -> None:
        """Print and store the results."""
        figure = efficiency_figure(scaling.curves(), f"Efficiency of {scaling.command}")
        publish("scaling", scaling.as_data(), table(scaling), sentences(scaling), figure, self.options, folder)

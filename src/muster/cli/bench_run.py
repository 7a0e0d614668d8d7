"""One job of `muster bench`, and its result files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from muster.api.execution import execute, in_foreground
from muster.api.prepared import prepare
from muster.bench import ranks
from muster.bench.listen import Hear, ListeningScreen
from muster.bench.rank_command import MODULE
from muster.bench.result_files import save
from muster.cli.run import print_plan
from muster.controller.rank_package import pack
from muster.hosts import Host, parse_hosts
from muster.job import job_folder
from muster.plan import labels
from muster.spec import RunSpec


def publish(
    name: str,
    measured: Mapping[str, object],
    lines: Sequence[str],
    verdict: Sequence[str],
    figure: str,
    options: argparse.Namespace,
    folder: Path,
) -> None:
    """Print the measurements and conclusions, write them to files, and print the paths."""
    data = {**measured, "verdict": verdict}
    if options.json:
        print(json.dumps(data, indent=1))
    else:
        print("\n".join([*lines, *(f"# {sentence}" for sentence in verdict)]))
    paths = save(options.out or folder, name, data, figure)
    if not getattr(options, "quiet", False):
        *most, last = (path.name for path in paths)
        sys.stderr.write(f"muster: {', '.join(most)} and {last} are in {paths[0].parent}\n")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One job that has ended."""

    code: int
    folder: Path

    @property
    def plan(self) -> dict[str, Any]:
        """The plan that the controller stored."""
        return json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))

    @property
    def planned(self) -> list[Host]:
        """The hosts with their slots, ordered by rank."""
        return [host for place in self.plan["hosts"] for host in parse_hosts(place["host"])]

    @property
    def hosts(self) -> list[str]:
        """Their labels, as in the output of `muster run`."""
        return labels(self.planned)


@contextmanager
def rank_side() -> Generator[Path]:
    """Create a directory with the code of the ranks, to be sent to every host."""
    with TemporaryDirectory(prefix="muster-bench-") as folder:
        pack(ranks, Path(folder), MODULE)
        yield Path(folder)


def sent(spec: RunSpec, code: Path) -> RunSpec:
    """Return the run of a benchmark whose module is in the directory `code`, which is sent to every host."""
    return replace(spec, kind="module", sync=True, cwd=str(code))


def run_once(
    spec: RunSpec, hear: Hear, begin: float, *, hosts: Sequence[Host] | None = None, dry_run: bool = False
) -> Ran:
    """Run one job to its end, on `hosts` only if given."""
    prepared = prepare(spec, hosts=hosts)
    folder = job_folder(prepared.job.id)
    if dry_run:
        return Ran(code=print_plan(prepared), folder=folder)
    verdict = execute(prepared, in_foreground, screen=ListeningScreen(hear, quiet=spec.quiet), begin=begin)
    return Ran(code=verdict.exit_code, folder=folder)

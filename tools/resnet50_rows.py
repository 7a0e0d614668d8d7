"""Measure the ResNet recipe's step at several batch sizes, and in float32, beside torchvision's model.

    python3 -m tools.resnet50_rows              about five minutes on an H200; needs torchvision
    python3 -m tools.resnet50_rows --small      a few seconds on a CPU, to try the script

torch.compile works for over a minute, most of it on CPUs, for each batch size. So each row has its own process: the
processes of a stage warm up side by side, and then take turns, one round each, while the others are idle. A row that
is not ready in time is left out.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from statistics import median

ROUNDS = 5
READY_LIMIT = 200.0
"""Seconds for the rows of a stage to warm up."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A row: which step, at which batch size."""

    kind: str
    """`ours`, or torchvision's model as `eager` or `compiled`."""
    batch: int
    precision: str = "bf16"


STAGES = (
    (Measured(kind="ours", batch=1024), Measured(kind="ours", batch=2048)),
    (
        Measured(kind="compiled", batch=256),
        Measured(kind="ours", batch=256),
        Measured(kind="compiled", batch=512),
        Measured(kind="ours", batch=512),
        Measured(kind="eager", batch=128, precision="float32"),
        Measured(kind="compiled", batch=128, precision="float32"),
        Measured(kind="ours", batch=128, precision="float32"),
    ),
)


class Process:
    """A row in its own process, which runs a round each time it is asked."""

    def __init__(self, row: Measured, size: str) -> None:
        command = [sys.executable, "-m", "tools.resnet50_rows", "row", json.dumps(asdict(row)), size]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._orders, self._answers = self._child.stdin, self._child.stdout
        self._row = row
        self.label = ""
        """What is known once it is ready."""
        self._rates: list[float] = []

    def wait(self, limit: float) -> None:
        """Wait until it is ready; give up after `limit` seconds."""
        readable, _, _ = select.select([self._answers], [], [], max(0.0, limit))
        self.label = self._answers.readline().strip() if readable else ""
        if not self.label:
            print(f"not ready: {self._row}", file=sys.stderr, flush=True)
            self.end()  # it would disturb the others

    def run_round(self) -> None:
        """Let it run a round."""
        self._orders.write("go\n")
        self._rates.append(float(self._answers.readline() or "nan"))

    def line(self) -> str:
        """Its line of the table."""
        rates = self._rates
        return f"| {self.label} | {median(rates):,.0f} | {min(rates):,.0f} to {max(rates):,.0f} |"

    def end(self) -> None:
        """End it."""
        self._child.kill()
        self._child.wait()


def main() -> None:
    """Measure all rows, or, as a child of this program, one of them."""
    if sys.argv[1:2] == ["row"]:
        run_row(Measured(**json.loads(sys.argv[2])), small=sys.argv[3] == "small")
        return
    size, began = "small" if sys.argv[1:] == ["--small"] else "full", time.monotonic()
    print("| step | batch | ready after | peak memory | images/s | rounds |\n|---|---|---|---|---|---|", flush=True)
    for stage in STAGES:
        processes = [Process(row, size) for row in stage]
        try:
            limit = time.monotonic() + READY_LIMIT
            for process in processes:
                process.wait(limit - time.monotonic())
            ready = [process for process in processes if process.label]
            for process in ready * ROUNDS:
                process.run_round()
            for process in ready:
                print(process.line(), flush=True)
        finally:
            for process in processes:
                process.end()
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def run_row(row: Measured, *, small: bool) -> None:
    """Warm up, describe the row in a line, and answer each line of stdin with the rate of a round."""
    import torch

    import muster
    from muster.recipes.resnet50 import bench

    args = argparse.Namespace(
        arch="resnet18" if small else "resnet50",
        batches=[4 if small else row.batch],
        alone=[],
        image_size=64 if small else 224,
        seconds=0.05 if small else 0.4,
        step="auto",
        compile=not small or row.kind == "compiled",
        precision="float32" if small else row.precision,
    )
    with muster.init() as world:
        torch.backends.cudnn.benchmark = True
        if row.kind == "ours":
            found = bench.recipe_builder(args, world)(args.batches[0])
        else:
            kind = "compiled" if row.kind == "compiled" else "peer"
            rows = {each.kind: each for each in bench.torchvision_rows(args, world)}
            if kind not in rows:
                sys.exit(1)
            found = rows[kind]
        began = time.monotonic()
        ready = bench.warm_up_rows([found], args, world)
        memory = torch.cuda.max_memory_allocated() / 1e9 if world.device.type == "cuda" else 0.0
        print(f"{found.name} | {found.batch} | {time.monotonic() - began:.0f} s | {memory:.1f} GB", flush=True)
        for _ in sys.stdin:
            step, count = ready[0]
            print(found.batch * count / bench.timed(step, count, world), flush=True)


if __name__ == "__main__":
    main()

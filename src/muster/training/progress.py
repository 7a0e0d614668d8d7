"""`muster.Progress`: progress output of a run, on rank 0 only."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from muster.errors import MusterError, UsageError
from muster.text import clock, count
from muster.training.drain_watch import DrainWatch
from muster.training.metrics import Metrics, Row, read_rows
from muster.training.plot import svg
from muster.training.together import in_all_ranks
from muster.training.utilization import utilization

if TYPE_CHECKING:
    from torch import Tensor

    from muster.rank.world.context import World


class Position(Protocol):
    """Where a run is in its data: `muster.Batches`, or an object of your own with these attributes."""

    @property
    def progress(self) -> float:
        """Epochs done: 2.5 in the middle of the third."""
        ...

    @property
    def length(self) -> int:
        """Number of samples of an epoch."""
        ...

    @property
    def total(self) -> int:
        """Number of samples of a step, over all ranks."""
        ...


class Progress:
    """Counts steps and shows loss, throughput and time left: a line for each interval, or a bar on a terminal.

    Every rank calls `begin()` before each step and `end()` after it; every `every` steps the ranks average their
    losses, and a loss of NaN or inf ends the run on all ranks. `batches` is `muster.Batches`, or an object of your own
    that has `progress` (epochs done), `length` (samples of an epoch) and `total` (samples of a step). With `flops`, the
    operations of a training step per sample, it also shows the model FLOP utilization (MFU). `metrics` is a directory
    for metrics.jsonl and, if installed, TensorBoard; `plot` is an SVG file.
    """

    def __init__(
        self,
        world: World,
        batches: Position,
        *,
        epochs: int,
        step: int = 0,
        every: int = 10,
        unit: str = "images",
        flops: float = 0.0,
        metrics: str | os.PathLike[str] | None = None,
        plot: str | os.PathLike[str] | None = None,
    ) -> None:
        if every < 1:
            raise UsageError(f"--log_every must be at least 1, got {every}")
        self.step = step
        """Number of steps done, including those before a resume."""
        self.is_draining = False
        """Whether to save and exit, because Muster is about to end all ranks; True in the same step on every rank."""
        self._drain = DrainWatch(world)
        self._world, self._batches, self._epochs, self._every, self._unit = world, batches, epochs, every, unit
        self._flops = flops
        self._shows = world.rank == 0
        self._folder = None if metrics is None else Path(metrics)
        self._metrics = Metrics(self._folder) if self._folder and self._shows else None
        self._plot = None if plot is None else Path(plot)
        self._rows: list[Row] = []
        self._watch = Stopwatch(world)
        self._bar = Bar() if self._shows and sys.stderr.isatty() else None
        self._interval, self._run, self._intervals = Tally(), Tally(), 0
        self._loss: Tensor | None = None

    def begin(self) -> None:
        """Start timing a step, whose data is ready."""
        self._watch.begin()

    def end(self, loss: Tensor, count: int) -> None:
        """Count a step, with this rank's weighted loss and the number of samples over all ranks."""
        self._watch.end()
        self.step += 1
        loss = loss.detach().float()
        self._loss = loss if self._loss is None else self._loss + loss
        self._interval.add(count)
        if self._interval.steps == self._every:
            self.flush()
        self.is_draining = self._drain.step() or self.is_draining

    def flush(self) -> None:
        """End the interval; all ranks call it before actions that a bad loss must prevent, such as saving."""
        if self._loss is None:
            return
        loss = self._mean_loss(self._loss)
        self._loss = None
        self._interval.busy = self._watch.read()
        interval, self._interval = self._interval, Tally()
        interval.stop()
        self._intervals += 1
        if (
            self._intervals == 2
        ):  # the first one includes compilation and warmup, so it counts only if it is the only one
            self._run = Tally()
        self._run.join(interval)
        if not math.isfinite(loss):
            error = MusterError(
                f"the loss is {loss} at step {self.step}, in epoch {self._batches.progress:.2f}",
                hint="try a lower learning rate or a longer warmup; --resume continues from the last checkpoint",
            )
            raise in_all_ranks(error, reports=self._shows)
        rates = {f"{self._unit}_per_s": interval.rate, f"{self._unit}_per_s_step": interval.step_rate}
        self.note(loss=loss, **rates)
        self._show(loss, interval)

    @contextmanager
    def pause(self) -> Generator[None, None, None]:
        """Exclude what is not training, such as an evaluation, from the throughput."""
        self.flush()
        yield
        self._interval = Tally()

    def note(self, **numbers: float) -> None:
        """Record metrics of this step, such as `accuracy=0.99`, for files and plot."""
        if self._shows:
            row: Row = {"step": self.step, "epoch": round(self._batches.progress, 4), **numbers}
            self._rows.append(row)
            if self._metrics:
                self._metrics.write(row)

    def say(self, line: str) -> None:
        """Print a line on rank 0, above the bar."""
        if self._shows:
            if self._bar:
                self._bar.clear()
            sys.stdout.write(f"{line}\n")  # one write: with torchrun's `python -u`, print would make two
            sys.stdout.flush()

    def close(self) -> None:
        """Print the throughput of the whole run, and draw the plot."""
        self.flush()
        if not self._shows:
            return
        if self._run.steps:
            last = "the last " if self._intervals > 1 else ""
            self.say(
                f"{self._unit}/s: {self._run.step_rate:,.1f} in the steps, {self._run.rate:,.1f} end to end "
                f"({last}{count(self._run.steps, 'step')}, {clock(self._run.seconds)})"
            )
        if self._metrics:
            self._metrics.close()
        if self._plot:
            rows = read_rows(self._folder) if self._folder else self._rows
            panels = ["loss", "validation_loss", f"{self._unit}_per_s", "accuracy"]
            try:
                self._plot.parent.mkdir(parents=True, exist_ok=True)
                self._plot.write_text(svg(rows, panels), encoding="utf-8")
            except OSError as error:
                raise UsageError(f"cannot write the plot to {self._plot}: {error.strerror}") from None
            self.say(f"plot: {self._plot}")

    def _mean_loss(self, total: Tensor) -> float:
        """The mean over the interval's steps and the ranks; the same on every rank."""
        import torch.distributed as dist

        if self._world.size > 1:
            dist.all_reduce(total)
        return float(total) / (self._interval.steps * self._world.size)

    def _show(self, loss: float, interval: Tally) -> None:
        if not self._shows:
            return
        done = min(1.0, self._batches.progress / self._epochs)
        steps_left = (self._epochs - self._batches.progress) * self._batches.length / self._batches.total
        left = clock(max(0.0, steps_left) * interval.seconds / interval.steps)
        epoch = max(1, math.ceil(self._batches.progress))
        used = f"{utilization(self._flops * interval.rate, self._world)}  " if self._flops else ""
        if self._bar:
            numbers = f"loss {loss:.4f}  {interval.rate:,.0f} {self._unit}/s  {used}{left} left"
            self._bar.draw(f"epoch {epoch}/{self._epochs}", done, numbers)
        else:
            self.say(
                f"epoch {epoch}/{self._epochs}  step {self.step}  loss {loss:.4f}  "
                f"{interval.rate:,.1f} {self._unit}/s  {used}{left} left"
            )


class Tally:
    """Steps, samples and seconds of an interval of a run."""

    def __init__(self) -> None:
        self.steps = self.count = 0
        self.seconds = self.busy = 0.0
        self._start = time.perf_counter()

    def add(self, count: int) -> None:
        """Count one step."""
        self.steps += 1
        self.count += count

    def stop(self) -> None:
        """Stop the clock."""
        self.seconds = time.perf_counter() - self._start

    def join(self, other: Tally) -> None:
        """Add another interval."""
        self.steps += other.steps
        self.count += other.count
        self.seconds += other.seconds
        self.busy += other.busy

    @property
    def rate(self) -> float:
        """Samples per second of wall-clock time, including waiting for data and saving."""
        return self.count / self.seconds if self.seconds else 0.0

    @property
    def step_rate(self) -> float:
        """Samples per second of the time spent in steps."""
        return self.count / self.busy if self.busy else 0.0


class Stopwatch:
    """Adds up the time of steps; on a GPU with events in its stream, so that nothing waits."""

    def __init__(self, world: World) -> None:
        import torch

        self._cuda = world.device.type == "cuda"
        self._new_event: Any = lambda: torch.cuda.Event(enable_timing=True)
        self._events: list[tuple[Any, Any]] = []
        self._begun: Any = None
        self._seconds = 0.0

    def begin(self) -> None:
        """Start timing a step."""
        if self._cuda:
            self._begun = self._new_event()
            self._begun.record()
        else:
            self._begun = time.perf_counter()

    def end(self) -> None:
        """Stop timing a step, on a GPU at this point of its stream."""
        if self._begun is None:
            raise MusterError("Progress.end() without Progress.begin()")
        if self._cuda:
            event = self._new_event()
            event.record()
            self._events.append((self._begun, event))
        else:
            self._seconds += time.perf_counter() - self._begun
        self._begun = None

    def read(self) -> float:
        """Return the seconds measured since the last call."""
        if self._events:
            self._events[-1][1].synchronize()
            self._seconds = sum(begun.elapsed_time(ended) for begun, ended in self._events) / 1000
            self._events.clear()
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class Bar:
    """A line on a terminal that is redrawn in place."""

    def draw(self, label: str, done: float, numbers: str) -> None:
        """Draw the bar within the width of the terminal."""
        columns = shutil.get_terminal_size().columns
        room = max(5, min(40, columns - len(label) - len(numbers) - 12))
        filled = round(room * done)
        line = f"{label} [{'=' * filled}{' ' * (room - filled)}] {done:4.0%}  {numbers}"
        sys.stderr.write(f"\r\033[K{line[: columns - 1]}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Erase the bar before printing a line."""
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()

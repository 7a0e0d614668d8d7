"""Forward and backward as CUDA graphs, one per batch shape, which launch thousands of kernels at once."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from .data import Examples
from .loss import Losses


@dataclass(frozen=True, kw_only=True)
class Captured:
    """One graph, the batch that it reads and the losses that it writes."""

    graph: Any
    examples: Examples
    losses: Losses


class Graphs:
    """Calls `work` with a batch: directly for the first batch of a shape, as a captured graph from then on.

    The first call compiles kernels and lets libraries choose theirs, which is not possible during capture. All graphs
    share one memory pool, so each overwrites what the previous one left there.
    """

    def __init__(self, work: Callable[[Examples], Losses]) -> None:
        self._work = work
        self._seen: set[tuple[int, ...]] = set()
        self._captured: dict[tuple[int, ...], Captured] = {}
        self._pool: Any = None
        # One stream for all captures, because memory of the pool is reused only within a stream. Its priority is above
        # the default, which other streams have: what runs there concurrently is not needed soon.
        self._stream: Any = torch.cuda.Stream(priority=-1)

    def __call__(self, examples: Examples) -> Losses:
        """Do the work, and return the losses."""
        shape = examples.shape
        if shape not in self._seen:
            self._seen.add(shape)
            return self._work(examples)
        if shape not in self._captured:
            self._captured[shape] = self._capture(examples)
        captured = self._captured[shape]
        for field in fields(Examples):
            getattr(captured.examples, field.name).copy_(getattr(examples, field.name))
        captured.graph.replay()
        losses: list[Tensor] = [captured.losses.reference, captured.losses.unpadded]
        return Losses(reference=losses[0].clone(), unpadded=losses[1].clone())

    def _capture(self, examples: Examples) -> Captured:
        copies = {field.name: getattr(examples, field.name).clone() for field in fields(Examples)}
        static = Examples(**copies)
        graph: Any = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # otherwise the memory of the first call would add to that of the pool
        # thread_local: nccl's watchdog may query its events in another thread meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            losses = self._work(static)
        self._pool = graph.pool()
        return Captured(graph=graph, examples=static, losses=losses)

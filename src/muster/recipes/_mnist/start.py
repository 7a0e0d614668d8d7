"""The start of a rank by a launcher or, with -n, -g and -i, of all ranks of a node by its first process."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

import muster

Work = Callable[..., None]
"""What every rank does: work(args, rank=..., world_size=..., local_rank=...); without a rank, a launcher has set it."""


def start(work: Work, args: argparse.Namespace) -> None:
    """Do the work of one rank, or start those of this node; an error that a user can fix is one sentence."""
    try:
        if args.nodes is None and args.gpus is None:
            work(args)
        else:
            spawn_ranks(work, args)
    except muster.MusterError as error:
        sys.stderr.write(error.report())
        sys.exit(error.exit_code)


def spawn_ranks(work: Work, args: argparse.Namespace) -> None:
    """Start the ranks of this node with mp.spawn, and raise the error that one of them reports."""
    found = muster.detect(os.environ, sys.argv)
    if found.launcher != "python":
        raise muster.UsageError(f"{found.launcher} has already started this process", hint="remove -n, -g and -i")
    counts = processes_per_node(args.nodes, args.gpus)
    if not 0 <= args.id < len(counts):
        raise muster.UsageError(f"-i must be from 0 to {len(counts) - 1}, got {args.id}")
    os.environ.update({"MASTER_ADDR": args.master_addr} if args.master_addr else {})
    os.environ.update({"MASTER_PORT": str(args.master_port)} if args.master_port else {})
    if len(counts) > 1 and not os.environ.get("MASTER_ADDR"):
        raise muster.UsageError("the address of node 0 is unknown", hint="pass --master-addr ADDRESS on all nodes")
    errors = mp.get_context("spawn").SimpleQueue()
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # it warns about each rank that it ends
    try:
        mp.spawn(work_as, (work, sum(counts[: args.id]), sum(counts), args, errors), nprocs=counts[args.id])
    except mp.ProcessExitedException as ended:
        if errors.empty():
            raise
        error: muster.MusterError = errors.get()
        if len(counts) > 1 and not isinstance(error, muster.UsageError):
            error.hint = f"{whereabouts(counts)}; each node needs the same -n, -g and --master-addr"
        raise error from ended


def whereabouts(counts: list[int]) -> str:
    """Describe which ranks are on which node: `-i 0 has ranks 0 to 7, -i 1 has rank 8`."""
    firsts = [sum(counts[:node]) for node in range(len(counts))]
    ranks = [f"ranks {f} to {f + c - 1}" if c > 1 else f"rank {f}" for f, c in zip(firsts, counts, strict=True)]
    return ", ".join(f"-i {node} has {those}" for node, those in enumerate(ranks))


def processes_per_node(nodes: int | None, text: str | None) -> list[int]:
    """Parse -n and -g: `-g 8,2` means two nodes, `-n 2 -g 8` two nodes with 8 processes each."""
    try:
        counts = [int(count) for count in (text or "1").split(",")]
    except ValueError:
        counts = [0]
    counts = counts * (1 if nodes is None else nodes) if len(counts) == 1 else counts
    if min(counts, default=0) < 1 or nodes not in (None, len(counts)):
        given = " ".join(f"{flag} {value}" for flag, value in (("-n", nodes), ("-g", text)) if value is not None)
        raise muster.UsageError(f"invalid {given}", hint="for two nodes with 8 and 2 processes: -n 2 -g 8,2")
    return counts


def work_as(local_rank: int, work: Work, first: int, size: int, args: argparse.Namespace, errors: Any) -> None:
    """Do the work of one rank of a node, and report an error to the process that started it."""
    try:
        work(args, rank=first + local_rank, world_size=size, local_rank=local_rank)
    except muster.MusterError as error:
        if not error.silent:
            errors.put(error)
        sys.exit(error.exit_code)

"""`muster.Checkpoints`: save a run while it continues, and resume it however it ended."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from muster.errors import MusterError, UsageError
from muster.rank.world.waiting import wait_for
from muster.training import checkpoint_folders, rng
from muster.training.checkpoint_fit import check_about, check_finite, load_parts
from muster.training.together import in_all_ranks, together
from muster.training.tree import put_together, take_apart

if TYPE_CHECKING:
    from types import TracebackType

    from torch import Tensor

    from muster.rank.world.context import World

WRITE_LIMIT = 600.0
"""Seconds that a checkpoint may take to reach the disk after the next one is due, or the run is over."""

FAILURE_LIMIT = 10.0
"""The same after the run has failed, when others wait for this rank to exit."""


class Stateful(Protocol):
    """A part of a run that can be saved: a model, an optimizer, `muster.Batches`, or your own object."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state to save."""
        ...

    def load_state_dict(self, state_dict: Any, /) -> object:
        """Restore a saved state."""
        ...


class Checkpoints:
    """The checkpoints of a run in one directory, for models that are the same on every rank (DDP) or sharded (FSDP2).

    With DDP, `folder` is used only on the host of rank 0; the other ranks get what they need over the network. With
    FSDP2, every rank writes and reads its part, so all hosts must share the directory. Either can resume what the other
    saved, with any number of ranks. `keep` is the number of complete checkpoints to keep. `about`, such as
    `{"arch": "resnet50"}`, must be the same on resume.
    """

    def __init__(
        self, folder: str | os.PathLike[str], world: World, *, keep: int = 2, about: Mapping[str, Any] | None = None
    ) -> None:
        import torch.distributed as dist

        if keep < 1:
            raise UsageError(f"keep must be at least 1, got {keep}")
        self._root, self._world, self._keep, self._about = Path(folder), world, keep, dict(about or {})
        self._step: int | None = None
        self._lock: int | None = None
        self._writing: Path | None = None
        self._written = threading.Event()
        self._trouble: BaseException | None = None
        # Rank 0 writes in a separate thread, which must not interfere with the collectives of the training. nccl does
        # not transfer CPU data, and mpi cannot create groups of another backend.
        group = None if world.backend == "mpi" else dist.new_group([0], backend="gloo")
        self._alone: dict[str, Any] = {"no_dist": True} if world.backend == "mpi" else {"process_group": group}
        self._all: dict[str, Any] = {}

    def begin(self, state: Mapping[str, Stateful], *, resume: bool) -> int:
        """Load the newest complete checkpoint into `state` and return its step, or 0 if there is none.

        Without `resume`, a directory that already has checkpoints is an error, so that no run is overwritten.
        All ranks must call this, and all get the same result or the same error.
        """
        from muster.training.sharding import is_sharded

        tensors: dict[str, Tensor] = {}
        complete: checkpoint_folders.Complete | None = None
        error: MusterError | None = None
        if self._world.rank == 0:
            try:
                complete = self._choose(resume)
                if complete:
                    check_about(complete, self._about)
                    tensors = {} if is_sharded(state) else self._read(complete.folder, self._alone)
            except MusterError as trouble:
                error = trouble
        complete, error = self._from_rank_0((complete, error))
        if error:
            raise in_all_ranks(error, reports=self._world.rank == 0)
        if complete is None:
            return 0
        if is_sharded(state):
            together(self._world, lambda: self._check_shared(self._root / complete.folder.name))
            tensors = together(self._world, lambda: self._read(complete.folder, self._everyone(), state))
        else:
            tensors = self._spread(tensors)
        saved = put_together(tensors)
        together(self._world, lambda: load_parts(state, saved["state"], complete.folder))
        # A rank that the saved run did not have keeps the seeds set by the script.
        mine = saved["rng"].get(str(self._world.rank))
        if mine is not None:
            rng.restore(mine)
        self._step = complete.step
        return complete.step

    def save(self, step: int, state: Mapping[str, Stateful]) -> None:
        """Start writing a checkpoint and return once `state` may change again; all ranks must call this.

        If the previous one is still being written, rank 0 first waits for it, so at most one interval is at risk.
        """
        from muster.training.sharding import is_sharded, mine

        generators = self._to_rank_0(rng.capture())
        sharded = is_sharded(state)
        if step == self._step or (generators is None and not sharded):
            return
        import torch.distributed.checkpoint as dcp

        self.wait()
        parts = {name: part.state_dict() for name, part in state.items()}
        check_finite(step, state, parts)
        each = {str(i): generator for i, generator in enumerate(generators or [])}
        tensors = mine(take_apart({"state": parts, "rng": each}), self._world.rank)
        folder = checkpoint_folders.folder_of(self._root, step)
        if sharded:
            together(self._world, lambda: self._make_room(folder))
            together(self._world, lambda: self._check_shared(folder))
        else:
            self._make_room(folder)
        self._step = step
        self._writing = folder
        self._written.clear()
        # FileSystemWriter copies the tensors to CPU memory before async_save returns.
        group = self._everyone() if sharded else self._alone
        future: Any = dcp.async_save(tensors, storage_writer=dcp.FileSystemWriter(folder), **group)
        future.add_done_callback(partial(self._complete, folder))

    def wait(self, limit: float = WRITE_LIMIT) -> None:
        """Wait until the current write is complete, and raise its error, if any."""
        folder = self._writing
        if folder is None:
            return
        if not wait_for(
            self._written.is_set, limit, lambda: f"rank {self._world.rank} is waiting for {folder} to be written"
        ):
            raise MusterError(f"writing {folder} timed out after {limit:.0f} s")
        self._writing = None
        trouble, self._trouble = self._trouble, None
        if trouble:
            raise MusterError(
                f"could not write {folder}: {_cause(trouble)}",
                hint="check for a full disk; earlier checkpoints are intact",
            ) from None

    def close(self) -> None:
        """Wait for the last checkpoint and release the directory."""
        try:
            self.wait()
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:  # the run has failed, and the checkpoint being written may be its best one
            self.wait(FAILURE_LIMIT)
        except MusterError as trouble:
            sys.stderr.write(f"muster: {trouble}\n")

    def _choose(self, resume: bool) -> checkpoint_folders.Complete | None:
        found, damaged = checkpoint_folders.find_complete(self._root)
        for sentence in damaged:
            sys.stderr.write(f"muster: {sentence}; skipped\n")
        newest = found[-1] if found else None
        if newest and not resume:
            raise UsageError(
                f"{self._root} already has checkpoints of a run, up to step {newest.step}",
                hint="use --resume to continue it, or choose another directory",
            )
        return newest

    def _everyone(self) -> dict[str, Any]:
        """The group of all ranks for reading and writing sharded checkpoints; created by all ranks at their first."""
        import torch.distributed as dist

        if not self._all:
            self._all = {"process_group": dist.new_group(backend="gloo")}
        return self._all

    def _make_room(self, folder: Path) -> None:
        if self._world.rank:
            return
        try:
            self._take_root()
            checkpoint_folders.make_room(self._root, folder)
        except OSError as error:
            raise MusterError(f"cannot write checkpoints to {self._root}: {error}") from None

    def _check_shared(self, folder: Path) -> None:
        """Raise an error if only rank 0 sees a directory: others would write elsewhere, or leave it alone in a load."""
        if not folder.is_dir():
            raise UsageError(
                f"rank {self._world.rank} on {socket.gethostname()} does not see {folder}, which rank 0 sees",
                hint="use a directory that all hosts share; every rank writes its part of a sharded model",
            )

    def _read(
        self, folder: Path, group: Mapping[str, Any], state: Mapping[str, Stateful] | None = None
    ) -> dict[str, Tensor]:
        import torch.distributed.checkpoint as dcp

        from muster.training.checkpoint_reader import TensorReader
        from muster.training.sharding import make_targets

        reader = TensorReader(folder)
        try:
            tensors = make_targets(reader.read_metadata().state_dict_metadata, state or {})
            dcp.load(tensors, storage_reader=reader, **group)
        # A damaged file can fail in any way; torch wraps the error in a BaseException.
        except (Exception, dcp.CheckpointException) as error:
            raise MusterError(
                f"cannot read {folder}: {_cause(error)}",
                hint=f"to use the previous checkpoint: rm -r {folder}",
            ) from error
        return tensors

    def _complete(self, folder: Path, done: Any) -> None:
        """Write the marker, in the thread that wrote the files, and only then remove old checkpoints."""
        try:
            done.result()  # on rank 0: all ranks have written
            if self._world.rank:
                return
            checkpoint_folders.mark_complete(folder, ranks=self._world.size, about=self._about)
            checkpoint_folders.prune(self._root, self._keep)
        except BaseException as error:
            self._trouble = error
        finally:
            self._written.set()

    def _take_root(self) -> None:
        """Make sure that no other run writes to the same directory."""
        if self._lock is not None:
            return
        import fcntl

        self._root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # A lockf lock ends with this process, even if forked children (of a DataLoader) keep the file open.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            raise UsageError(f"another run is writing checkpoints to {self._root}") from None
        except OSError:
            pass  # the network file system has no locks
        self._lock = descriptor

    def _from_rank_0(self, value: Any) -> Any:
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def _to_rank_0(self, value: Tensor) -> list[Tensor] | None:
        import torch.distributed as dist

        values: list[Any] | None = [None] * self._world.size if self._world.rank == 0 else None
        dist.gather_object(value, values, dst=0)
        return values

    def _spread(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Send what rank 0 has read to every rank, so that only its host needs the directory."""
        import torch
        import torch.distributed as dist

        if self._world.size == 1:
            return tensors
        device = self._world.device if self._world.backend == "nccl" else torch.device("cpu")
        shapes = self._from_rank_0({name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()})
        received: dict[str, Tensor] = {}
        for name, (shape, dtype) in shapes.items():
            tensor = tensors[name].to(device) if tensors else torch.empty(shape, dtype=dtype, device=device)
            dist.broadcast(tensor, src=0)
            received[name] = tensor.cpu()
        return received


def _cause(error: BaseException) -> str:
    """The first line of the error inside torch's CheckpointException."""
    failures: dict[int, Any] = getattr(error, "failures", {})
    for failure in failures.values():
        error = failure[0] if isinstance(failure, tuple) else failure
    return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__

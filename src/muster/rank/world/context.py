"""`muster.init()`: joins the world that this process was started for, under any launcher."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.engines.rank_variables import LOOPBACK, Clue, complete
from muster.errors import MusterError, UsageError
from muster.rank.world.detect import Detection, detect, from_arguments
from muster.rank.world.farewell import Exit, agent_keeps_store
from muster.rank.world.find_rank_0 import Answer, address_of_rank_0, find_rank_0
from muster.rank.world.gloo import address_toward, point_gloo_at
from muster.rank.world.master_address import meet
from muster.rank.world.past_attempts import attempt_number, lost_before
from muster.rank.world.roll_call import Facts, Place, call_roll
from muster.rank.world.sockets import leads_here, listen, open_sockets, reach
from muster.rank.world.time_left import read_deadline

if TYPE_CHECKING:
    from types import TracebackType

    import torch

BACKENDS = ("nccl", "gloo", "mpi")

ARRIVAL_LIMIT = 300.0
"""Seconds within which all ranks must have joined, unless `timeout` is given."""


LONGEST = 10_000 * 86400.0
"""Seconds; the largest `timeout`."""


@dataclass(frozen=True, kw_only=True)
class World:
    """The ranks of a job as seen by one of them; leave it with `close()` or a `with` block."""

    rank: int
    """The number of this rank, from 0."""
    size: int
    """The number of ranks on all hosts."""
    local_rank: int
    """Its number on this host, from 0."""
    local_size: int
    """The number of ranks on this host."""
    device: torch.device
    """This rank's GPU if it has one, otherwise the CPU."""
    backend: str
    """nccl, gloo or mpi."""
    backend_reason: str
    """Why this backend, in a sentence."""
    launcher: str
    """What started this process: `muster run`, `torchrun`, `srun` and so on."""
    launcher_reason: str
    """The variables that identified the launcher, in a sentence."""
    address: str
    """Where rank 0 listens, as `ADDR:PORT`; empty if the process group existed before."""
    attempt: int = field(default_factory=attempt_number)
    """How often the job was restarted before, under `muster run` and torchrun."""
    lost: tuple[str, ...] = field(default_factory=lost_before)
    """What ended the attempt before this one, a sentence for each lost host; empty in the first one."""
    _leave: Callable[[bool], None] = field(repr=False, compare=False)

    @property
    def deadline(self) -> float | None:
        """When Muster will end this rank because a host is about to go away, in seconds since 1970; else None.

        Ranks see a new deadline within milliseconds of each other, not in the same step; reading it takes 2 µs.
        """
        return read_deadline()

    def time_left(self) -> float | None:
        """Seconds until `deadline`, 0 if it has passed; None if there is none."""
        deadline = read_deadline()
        return None if deadline is None else max(0.0, deadline - time.time())

    def close(self) -> None:
        """Destroy the process group; further calls do nothing."""
        self._leave(True)

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception the other ranks may never get here, so do not wait for them.
        self._leave(error is None)


def init(
    *,
    backend: str | None = None,
    timeout: float | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
) -> World:
    """Join the world that this process was started for: `with muster.init() as world: ...`.

    The launcher is detected from the environment (see `muster.detect`); a worker of mp.spawn passes `rank` and
    `world_size` itself. `backend` is nccl, gloo or mpi; by default nccl if each rank has its own GPU, otherwise
    gloo. `timeout` limits, in seconds, the wait for the other ranks (default 300) and each collective (default:
    torch's own limit). An existing process group is used and never destroyed.
    """
    dist = _torch_distributed()
    if backend is not None and backend not in BACKENDS:
        raise UsageError(f"unknown backend `{backend}`", hint=f"choose one of {', '.join(BACKENDS)}")
    _check_timeout(timeout)
    if dist.is_initialized():
        return _existing_world(dist)
    if rank is not None and world_size is not None:
        found = from_arguments(os.environ, rank, world_size, local_rank)
    elif rank is None and world_size is None and local_rank is None:
        found = detect(complete(os.environ), sys.argv)
    else:
        raise UsageError(
            "rank and world_size must be given together", hint="for example muster.init(rank=0, world_size=2)"
        )
    found = _at_home(found)
    if backend == "mpi":
        return _mpi_world(dist, found, timeout)
    return _join(dist, found, backend, timeout)


def _check_timeout(timeout: object) -> None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise UsageError(f"timeout must be a number of seconds, got {timeout!r}", hint="leave it out for 300 s")
    if timeout is not None and not 0 < timeout <= LONGEST:
        bound = f"at most {LONGEST:.0f} s" if timeout > LONGEST else "above 0"
        raise UsageError(f"timeout must be {bound}, got {timeout}", hint="leave it out for 300 s")


def _at_home(found: Detection) -> Detection:
    """Let workers of mp.spawn meet on this host unless an address is given; their parent identifies the job."""
    spawner = multiprocessing.parent_process()
    if spawner is None or found.master_addr or found.meeting:
        return found
    clue = Clue(hosts=(LOOPBACK,), reason=f"this process was spawned by process {spawner.pid} on this host")
    meeting = meet(f"spawned by {spawner.pid} on {_machine()}", clue)
    return replace(found, master_addr=LOOPBACK, meeting=meeting, reason=f"{found.reason}; {clue.reason}")


def _torch_distributed() -> Any:
    try:
        import torch.distributed
    except ImportError as error:
        raise MusterError(f"{sys.executable} could not import torch: {error}", hint="pip install torch") from None
    if not torch.distributed.is_available():
        raise MusterError("this torch was built without torch.distributed")
    return torch.distributed


def _join(dist: Any, found: Detection, backend: str | None, timeout: float | None) -> World:
    import torch

    facts = _facts(found, backend)
    if backend == "nccl" and not (facts.gpus and dist.is_nccl_available()):
        lack = "has no visible GPU" if not facts.gpus else "has a torch built without NCCL"
        raise UsageError(
            f"backend nccl is not available: rank {found.rank} on {facts.host} {lack}", hint="use backend gloo"
        )
    limit = ARRIVAL_LIMIT if timeout is None else timeout
    store, opened = _open_store(dist, found, limit)
    facts = replace(facts, address=address_toward(opened.host))
    place = _agree(store, found, facts, limit, opened)
    if place.backend == "gloo" and place.neighbor:
        point_gloo_at((facts.address, address_toward(place.neighbor)))
    device = torch.device("cpu") if place.gpu is None else torch.device("cuda", place.gpu)
    if place.gpu is not None:
        torch.cuda.set_device(device)
    before = open_sockets()
    dist.init_process_group(
        place.backend,
        store=store,
        rank=found.rank,
        world_size=found.size,
        timeout=None if timeout is None else timedelta(seconds=timeout),
        device_id=device if place.backend == "nccl" else None,  # otherwise NCCL guesses it at the first barrier
    )
    return World(
        rank=found.rank,
        size=found.size,
        local_rank=place.local_rank,
        local_size=place.local_size,
        device=device,
        backend=place.backend,
        backend_reason=place.backend_reason,
        launcher=found.launcher,
        launcher_reason=found.reason,
        address=opened.address,
        _leave=Exit(dist, found, store, open_sockets() - before),
    )


def _agree(store: Any, found: Detection, facts: Facts, limit: float, opened: _Open) -> Place:
    try:
        return call_roll(store, found.rank, found.size, facts, limit=limit, where=opened.address)
    except RuntimeError as error:  # torch.distributed.DistError: rank 0 and its store are gone
        raise MusterError(
            f"rank {found.rank} on {facts.host} lost its connection to rank 0 at {opened.address}: {error}"
        ) from None
    finally:
        if opened.answer:
            opened.answer.close()


def _facts(found: Detection, backend: str | None) -> Facts:
    import torch

    gpus: list[str] = []
    if torch.cuda.is_available():
        properties: list[Any] = [
            torch.cuda.get_device_properties(i)  # pyright: ignore[reportUnknownMemberType]
            for i in range(torch.cuda.device_count())
        ]
        gpus = [str(each.uuid) for each in properties]
    host, machine = _machine()
    return Facts(
        host=host,
        machine=machine,
        gpus=tuple(gpus),
        backend=backend,
        local_rank=found.local_rank,
        local_size=found.local_size,
    )


def _machine() -> tuple[str, str]:
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return socket.gethostname(), boot_id.read_text().strip() if boot_id.exists() else ""


@dataclass(frozen=True, kw_only=True)
class _Open:
    """The store of this job in this process."""

    store: Any
    host: str
    port: int
    answer: Answer | None
    """Announces the address of the store to the other ranks until they have joined."""

    @property
    def address(self) -> str:
        """Host and port, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_opened: dict[object, _Open] = {}
_generations: dict[object, int] = {}


def _open_store(dist: Any, found: Detection, limit: float) -> tuple[Any, _Open]:
    """Open the key-value store that rank 0 (or torchrun's agent) serves.

    A process keeps the store for a second `init()`: if rank 0 closed and reopened it, a faster rank could still
    connect to the old one.
    """
    job = found.meeting or (found.master_addr, found.master_port)
    if job not in _opened:
        _opened[job] = _connect(dist, found, limit)
    _generations[job] = _generations.get(job, 0) + 1
    return dist.PrefixStore(f"muster/{_generations[job]}", _opened[job].store), _opened[job]


def _connect(dist: Any, found: Detection, limit: float) -> _Open:
    addr, port, meeting = found.master_addr, found.master_port, found.meeting
    if addr is None and meeting is None:
        raise UsageError(
            f"rank {found.rank} of {found.size} does not know the host of rank 0: MASTER_ADDR is not set",
            hint="set MASTER_ADDR to the address of that host on all ranks (mpirun: -x MASTER_ADDR=host)",
        )
    wait = timedelta(seconds=limit)
    if found.rank == 0 and not agent_keeps_store():
        return _keep_store(dist, found, wait)
    who = f"rank {found.rank} on {socket.gethostname()}"
    if meeting:
        addr, port = find_rank_0(meeting, who=who, limit=limit)
    assert addr is not None
    assert port is not None
    reach(addr, port, who=who, limit=limit)
    try:
        store = dist.TCPStore(addr, port, found.size, False, timeout=wait, wait_for_workers=False)
    except RuntimeError:  # torch.distributed.DistError: 12 KB of C++ frames
        raise MusterError(
            f"{who} reached {addr}:{port}, but what answers there is not rank 0 of this job",
            hint="set MASTER_PORT to a free port, the same on all ranks",
        ) from None
    return _Open(store=store, host=addr, port=port, answer=None)


def _keep_store(dist: Any, found: Detection, wait: timedelta) -> _Open:
    server = listen(found.master_port or 0)
    port = server.getsockname()[1]
    meeting = found.meeting
    addr = address_of_rank_0(meeting, port) if meeting else found.master_addr or LOOPBACK
    # The server listens on every interface. If the address is not this host's own, or one that only other hosts
    # can reach, rank 0 still starts, so that it can report which ranks do not reach it.
    store = dist.TCPStore(
        addr if leads_here(addr, port) else LOOPBACK,
        port,
        found.size,
        True,
        timeout=wait,
        wait_for_workers=False,
        master_listen_fd=server.detach(),
    )
    answer = Answer(meeting, port) if meeting and found.size > 1 else None
    return _Open(store=store, host=addr, port=port, answer=answer)


def _mpi_world(dist: Any, found: Detection, timeout: float | None) -> World:
    if not dist.is_mpi_available():
        raise UsageError(
            "this torch was built without MPI support", hint="use backend gloo, which also works under mpirun"
        )
    dist.init_process_group("mpi", timeout=None if timeout is None else timedelta(seconds=timeout))
    return replace(
        _existing_world(dist),
        backend_reason="it was requested",
        launcher=found.launcher,
        launcher_reason=found.reason,
        _leave=Exit(dist, found, None, frozenset()),
    )


def _existing_world(dist: Any) -> World:
    """Describe an existing process group; whoever created it must destroy it."""
    import torch

    rank, size = dist.get_rank(), dist.get_world_size()
    machines: list[Any] = [None] * size
    dist.all_gather_object(machines, _machine())
    return World(
        rank=rank,
        size=size,
        local_rank=machines[:rank].count(machines[rank]),
        local_size=machines.count(machines[rank]),
        device=torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu"),
        backend=dist.get_backend(),
        backend_reason="the process group was created before muster.init()",
        launcher="script",
        launcher_reason="the process group was created before muster.init()",
        address="",
        _leave=lambda orderly: None,
    )

"""What is known about a host: its interpreter, CPUs and network, and its memory and disks after a failure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypedDict
else:
    from .protocol import TypedDict


class MemoryFacts(TypedDict):
    """What the kernel counted about memory around a rank's failure."""

    group_kills: int | None
    host_kills: int | None
    limit: int | None
    peak: int | None
    total: int


class DiskFacts(TypedDict):
    """The file system of a path: free space, type, mount point, whether the kernel made it read-only on an error."""

    path: str
    folder: str
    free: int
    total: int
    inodes: int | None
    kind: str
    point: str
    failed: bool


class FailureFacts(TypedDict):
    """The state of the host after a rank has failed, with the kernel's lines about hardware since the ranks started."""

    memory: MemoryFacts
    inside: str
    disks: list[DiskFacts]
    shm: DiskFacts | None
    kernel: list[str]
    gpus: list[str]


class Interface(TypedDict):
    """A network interface that is up."""

    name: str
    addresses: list[str]
    loopback: bool


class Facts(TypedDict):
    """What the controller must know about a host."""

    time: float
    python: str
    version: Sequence[int]
    torch: str | None
    cpus: int
    gpus: int
    visible: str | None
    omp: str | None
    interfaces: list[Interface]

"""The state of a host after a failure: memory, disks, and what its kernel logged."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
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

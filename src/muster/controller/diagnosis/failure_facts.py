"""What an agent found on its host right after a rank failed. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The file system of a path, as the agent saw it right after the rank failed."""

    path: str
    """The path that the rank wrote to or looked for."""
    folder: str
    """The path, or its nearest parent directory that exists."""
    free: int
    """Bytes available to this user."""
    total: int
    inodes: int | None = None
    """Free inodes; None if the file system does not count them."""
    kind: str = ""
    """The type of the file system, such as `ext4` or `nfs4`; empty if unknown."""
    point: str = ""
    """Where it is mounted; empty if unknown."""
    failed: bool = False
    """Whether the kernel made it read-only after an error of the disk."""

    @property
    def place(self) -> str:
        """Where it is mounted, or a directory on it."""
        return self.point or self.folder

    @property
    def exists(self) -> bool:
        """Whether the path itself exists."""
        return self.folder == self.path

    @property
    def is_full(self) -> bool:
        """Whether it has no space or no inodes left."""
        return self.free <= max(1 << 20, self.total // 1000) or self.inodes == 0


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory counters of the kernel for the seconds before a rank ended."""

    group_kills: int | None = None
    """Processes of the rank's control group that the OOM killer killed; None if unknown."""
    host_kills: int | None = None
    """The same for the whole host."""
    limit: int | None = None
    """Memory limit of the control group or of a parent group, in bytes."""
    peak: int | None = None
    """Peak memory of the group that has this limit, in bytes."""
    total: int = 0
    """Memory of the host in bytes."""

    @property
    def is_counted(self) -> bool:
        """Whether the kernel counts OOM kills here."""
        return self.group_kills is not None or self.host_kills is not None

    @property
    def at_limit(self) -> bool:
        """Whether the group reached its limit; the OOM killer acts slightly below it."""
        return self.limit is not None and self.peak is not None and self.peak >= 0.9 * self.limit

"""What a rank's agent found out about its host when the rank had failed. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The file system under a path, as a rank's agent saw it when the rank had failed."""

    path: str
    """What the rank wrote to or looked for."""
    folder: str
    """The path, or the nearest folder above it that exists."""
    free: int
    """Bytes that are left for this user."""
    total: int
    inodes: int | None = None
    """How many more files it can hold, where it counts them."""

    @property
    def exists(self) -> bool:
        """Whether the path itself is there."""
        return self.folder == self.path

    @property
    def is_full(self) -> bool:
        """Whether nothing of any size fits on it, or not one more file."""
        return self.free <= max(1 << 20, self.total // 1000) or self.inodes == 0


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What the kernel counted about memory in the seconds before a rank's end."""

    group_kills: int | None = None
    """How many processes of the rank's control group it killed; None where it does not tell."""
    host_kills: int | None = None
    """How many of the whole host."""
    limit: int | None = None
    """The memory limit of the control group or of one above it, if there is one."""
    peak: int | None = None
    """The most that the group with this limit has held."""
    total: int = 0
    """The memory of the host."""

    @property
    def is_counted(self) -> bool:
        """Whether the kernel tells of such kills at all."""
        return self.group_kills is not None or self.host_kills is not None

    @property
    def at_limit(self) -> bool:
        """Whether the group has come to its limit: the kernel gives up a little below it."""
        return self.limit is not None and self.peak is not None and self.peak >= 0.9 * self.limit

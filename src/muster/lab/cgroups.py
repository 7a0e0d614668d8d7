"""Control groups of one lab, created only for the faults that need them and removed by the switch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from muster.errors import LabError

CPU_PERIOD_US = 100_000


@dataclass(frozen=True, kw_only=True)
class Hierarchies:
    """Directories in which control groups can be created on this machine; None if they cannot."""

    unified: Path | None = None
    freezer_v1: Path | None = None
    cpu_v1: Path | None = None
    memory_v1: Path | None = None


def read_hierarchies(mountinfo: str, own_cgroups: str, *, root: bool) -> Hierarchies:
    """Find the hierarchies in the text of /proc/self/mountinfo and /proc/self/cgroup.

    Root creates its groups at the top. Other users can create them only next to their own group, and only if it was
    delegated to them, which works only in the unified hierarchy.
    """
    found: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(maxsplit=2)
        mount = Path(before.split()[4])
        if kind == "cgroup2":
            found.setdefault("unified", mount)
        elif kind == "cgroup" and root:
            for controller in {"freezer", "cpu", "memory"} & set(options.split(",")):
                found.setdefault(controller, mount)
    unified = found.get("unified")
    if unified and not root:
        own = next((line[3:] for line in own_cgroups.splitlines() if line.startswith("0::")), "/")
        unified = (unified / own.strip("/")).parent if own.strip("/") else unified
    return Hierarchies(
        unified=unified, freezer_v1=found.get("freezer"), cpu_v1=found.get("cpu"), memory_v1=found.get("memory")
    )


class Cgroups:
    """The groups of one lab: the switch removes those listed in `ledger`; `pids` returns the processes of a host."""

    def __init__(self, lab: str, ledger: Path, pids: Callable[[str], list[int]]) -> None:
        self._lab = lab
        self._ledger = ledger
        self._pids = pids
        self._made: dict[tuple[Path, str], Path] = {}
        self._hierarchies = read_hierarchies(
            Path("/proc/self/mountinfo").read_text(),
            Path("/proc/self/cgroup").read_text(),
            root=os.getuid() == 0,
        )

    def freeze(self, host: str) -> None:
        """Freeze every process of a host, in a way they can neither detect nor prevent."""
        unified, v1 = self._hierarchies.unified, self._hierarchies.freezer_v1
        try:
            if unified:
                group = self._join(unified, host)
                if (group / "cgroup.freeze").exists():
                    (group / "cgroup.freeze").write_text("1")
                    _wait_for(group / "cgroup.events", "frozen 1", f"{host} to freeze")
                    return
            if v1:
                group = self._join(v1, host)
                (group / "freezer.state").write_text("FROZEN")
                _wait_for(group / "freezer.state", "FROZEN", f"{host} to freeze")
                return
        except OSError as error:
            raise _refused(host, "freeze", error) from error
        raise LabError(f"cannot freeze {host}: this machine has no cgroup freezer")

    def thaw(self, host: str) -> None:
        """Resume the processes of a frozen host."""
        for (hierarchy, name), group in self._made.items():
            if name != host:
                continue
            if hierarchy == self._hierarchies.unified:
                (group / "cgroup.freeze").write_text("0")
            elif hierarchy == self._hierarchies.freezer_v1:
                (group / "freezer.state").write_text("THAWED")

    def limit_cpu(self, host: str, cores: float | None) -> Path:
        """Limit all processes of a host together to `cores` CPUs (None: no limit); return their group."""
        quota = None if cores is None else max(1000, round(cores * CPU_PERIOD_US))
        v1 = {"cpu.cfs_period_us": str(CPU_PERIOD_US), "cpu.cfs_quota_us": str(quota or -1)}
        v2 = {"cpu.max": f"{quota or 'max'} {CPU_PERIOD_US}"}
        return self._limit(host, "cpu", v1, v2, do="limit the CPU time of", lacks="CPU quota")

    def limit_memory(self, host: str, size: str | None) -> Path:
        """Limit the memory of all processes of a host together to `size` (None: no limit); return their group."""
        v1, v2 = {"memory.limit_in_bytes": size or "-1"}, {"memory.max": size or "max"}
        return self._limit(host, "memory", v1, v2, do="limit the memory of", lacks="memory limit")

    def _limit(
        self, host: str, controller: str, v1: dict[str, str], v2: dict[str, str], *, do: str, lacks: str
    ) -> Path:
        """Write the settings of a controller, in version 1 if it has its own hierarchy."""
        own = {"cpu": self._hierarchies.cpu_v1, "memory": self._hierarchies.memory_v1}[controller]
        unified = self._hierarchies.unified
        try:
            if own:
                group, settings = self._join(own, host), v1
            elif unified and controller in (unified / "cgroup.controllers").read_text().split():
                for folder in (unified, self._folder(unified)):
                    (folder / "cgroup.subtree_control").write_text(f"+{controller}")
                group, settings = self._join(unified, host), v2
            else:
                raise LabError(f"cannot {do} {host}: cgroups on this machine have no {lacks}")
            for name, text in settings.items():
                (group / name).write_text(text)
        except OSError as error:
            raise _refused(host, do, error) from error
        return group

    def release(self, host: str) -> None:
        """Remove the groups of a host whose processes are gone."""
        for key in [key for key in self._made if key[1] == host]:
            _remove(self._made.pop(key))

    def _folder(self, hierarchy: Path) -> Path:
        folder = hierarchy / self._lab
        if not folder.exists():
            self._note(folder)
            folder.mkdir()
        return folder

    def _join(self, hierarchy: Path, host: str) -> Path:
        key = (hierarchy, host)
        if key not in self._made:
            group = self._folder(hierarchy) / host
            self._note(group)
            group.mkdir()
            self._made[key] = group
        _move(self._made[key], lambda: self._pids(host))
        return self._made[key]

    def _note(self, group: Path) -> None:
        """Add a group to the list of groups that the switch removes, before it exists; the newest comes first."""
        known = self._ledger.read_text() if self._ledger.exists() else ""
        fresh = self._ledger.with_suffix(".new")
        fresh.write_text(f"{group}\n" + known.replace(f"{group}\n", ""))
        fresh.rename(self._ledger)


def _refused(host: str, do: str, error: OSError) -> LabError:
    return LabError(
        f"cannot {do} {host}: the kernel refused to create a control group ({error.strerror})",
        hint="start the lab as root",
    )


def _move(group: Path, pids: Callable[[], list[int]]) -> None:
    """Move processes into a group until no new one appears, because they may fork meanwhile."""
    members = group / "cgroup.procs"
    for _ in range(100):
        outside = set(pids()) - {int(pid) for pid in members.read_text().split()}
        if not outside:
            return
        for pid in outside:
            try:
                members.write_text(str(pid))
            except ProcessLookupError:
                pass
    raise LabError(f"could not move the processes of {group.name} to a control group: they fork too fast")


def _wait_for(file: Path, text: str, what: str) -> None:
    deadline = time.monotonic() + 5
    while text not in file.read_text():
        if time.monotonic() > deadline:
            raise LabError(f"timed out after 5 s waiting for {what}")
        time.sleep(0.005)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 5
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:  # the kernel is still removing the dead processes
            if time.monotonic() > deadline:
                return  # the switch retries when the lab ends
            time.sleep(0.01)

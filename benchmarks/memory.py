"""Memory of ranks and agents while all ranks are idle after their first all_reduce."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from benchmarks.commands import LIMIT, Command, muster, need_torchrun, torchrun, wait_for_files
from benchmarks.experiment import Experiment
from benchmarks.reaper import below
from benchmarks.table import Row, Sample

MB = 1e6


class Memory(Experiment):
    """Memory as PSS, which counts a page shared by n processes as 1/n for each."""

    def __init__(self, ranks: int, *, rank: Row, agent: Row) -> None:
        super().__init__()
        self.ranks = ranks
        self.rank = rank
        self.agent = agent
        self.rows = (rank, agent)

    def open(self) -> None:
        """Check that torchrun is installed."""
        need_torchrun()

    def round(self) -> dict[str, Sample]:
        """Muster, whose agent is above the zygote, then torchrun, which is its own agent."""
        ours, theirs = self._once(muster, above=2), self._once(torchrun, above=1)
        host = {"host_muster": ours["host"], "host_peer": theirs["host"]}
        resident = {"rss_muster": ours["agent_rss"], "rss_peer": theirs["agent_rss"]}
        return {
            self.rank.name: Sample(muster=ours["rank"], peer=theirs["rank"], also=host),
            self.agent.name: Sample(muster=ours["agent"], peer=theirs["agent"], also=resident),
        }

    def _once(self, launcher: Callable[[int, str, Path], list[str | Path]], above: int) -> dict[str, float]:
        folder = self.new_folder("run")
        os.mkfifo(folder / "alive")
        reader = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
        try:
            with Command(launcher(self.ranks, "sit.py", folder), folder) as command:
                wait_for_files(folder, "pid-*", self.ranks, LIMIT)
                ranks = [int(file.read_text()) for file in folder.glob("pid-*")]
                agent = ancestor(ranks[0], above)
                figures = {
                    "rank": sum(memory(pid, "Pss") for pid in ranks) / len(ranks),
                    "agent": memory(agent, "Pss"),
                    "agent_rss": memory(agent, "Rss"),
                    "host": sum(memory(pid, "Pss") for pid in [agent, *below(agent)]),
                }
                (folder / "go").touch()
                command.finish()
        finally:
            os.close(reader)
        return figures


def memory(pid: int, kind: str) -> float:
    """The Pss or Rss of a process, in megabytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024 / MB
    raise AssertionError(f"the kernel reports no {kind}")


def ancestor(pid: int, generations: int) -> int:
    """The parent of a process, or its grandparent."""
    for _ in range(generations):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid

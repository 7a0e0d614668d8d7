"""Jobs whose hosts are lost while they run: a script that reports each attempt, and how to break what it runs on."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

from launching import Done, HostJob, alive
from waiting import wait_until

from muster.lab import Lab

ADD = """\
# `add` sums over all ranks and waits for them: an all_reduce, or the same through files, which starts without torch.
if "torch" in sys.argv:
    import torch, torch.distributed as dist
    def add(number):
        total = torch.tensor([float(number)])
        dist.all_reduce(total)
        return int(total.item())
else:
    rounds = itertools.count()
    def add(number):
        job, attempt = os.environ["TORCHELASTIC_RUN_ID"], os.environ["TORCHELASTIC_RESTART_COUNT"]
        place = f"SHARED/added-{job}-{attempt}-{next(rounds)}-"
        with open(place + "new-" + os.environ["RANK"], "w") as file:
            file.write(str(int(number)))
        os.rename(file.name, place + os.environ["RANK"])
        total = 0
        for each in range(int(os.environ["WORLD_SIZE"])):
            while not os.path.exists(place + str(each)):
                time.sleep(0.01)
            with open(place + str(each)) as file:
                total += int(file.read())
        return total
"""
"""Start of a script whose ranks wait for each other; `with_add` puts it there."""

SCRIPT = """\
import itertools, json, os, sys, time
ADD
if "torch" in sys.argv:
    dist.init_process_group("gloo")
attempt, world = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), add(1)
said = {"attempt": attempt, "world": world, "rank": int(os.environ["RANK"]), "group": os.environ["GROUP_RANK"],
        "host": os.uname().nodename, "time": time.time(),
        "lost": json.loads(os.environ.get("MUSTER_LOST", "[]"))}
print("BEGUN", json.dumps(said), flush=True)
while attempt < int(sys.argv[1]):     # until something is lost that often
    time.sleep(0.05)
    add(1)
add(1)
"""

FRESH = "--no-zygote"
"""For jobs whose test is not about torch: its import is most of what a job on three hosts costs."""


def with_add(script: str, shared: Path) -> str:
    """The text of a script that uses `add`."""
    return script.replace("ADD\n", ADD.replace("SHARED", str(shared)), 1)


class Site:
    """A lab with the controller on h1, which runs no ranks."""

    def __init__(self, lab: Lab, shared: Path) -> None:
        self.lab = lab
        self.shared = shared
        self.jobs: list[Running] = []
        (shared / "survive.py").write_text(with_add(SCRIPT, shared))

    def run(self, *options: str, attempts: int = 1) -> Running:
        """Start a job whose ranks run until this many attempts have been lost; with torch, unless they are `FRESH`."""
        how = () if FRESH in options else ("torch",)
        self.jobs.append(Running(self.lab, self.shared, *options, "survive.py", str(attempts), *how))
        return self.jobs[-1]

    def heal(self) -> None:
        """Bring every host back after a test, and check that nothing of it is left but jobs of a test that failed."""
        for status in self.lab.status():
            if status.state == "frozen":
                self.lab.thaw(status.name)
            if status.state == "off":
                self.lab.reboot(status.name)
            self.lab.heal(status.name)
        for job in self.jobs:
            job.end()
        wait_until("nothing is left", lambda: not alive(self.lab, self.lab.names))


class Running(HostJob):
    """A job in progress."""

    def __init__(self, lab: Lab, shared: Path, *argv: str) -> None:
        super().__init__(lab, "h1", shared, "--no-check", "--grace", "1", *argv)

    def begun(self, attempt: int) -> dict[int, dict[str, object]]:
        """What the ranks of an attempt have printed, by rank."""
        found = [json.loads(text) for text in re.findall(r"BEGUN (\{.*\})", self.out)]
        return {each["rank"]: each for each in found if each["attempt"] == attempt}

    def wait_begun(self, attempt: int, world: int, limit: float = 60) -> dict[int, dict[str, object]]:
        """Wait until all ranks of an attempt have met."""
        what = f"{world} ranks in attempt {attempt}"
        wait_until(what, lambda: len(self.begun(attempt)) == world, limit, lambda: f"{self.out}\n{self.err}")
        return self.begun(attempt)

    def wait_for(self, pattern: str, limit: float = 60) -> None:
        """Wait until Muster has printed something."""
        wait_until(pattern, lambda: re.search(pattern, self.err), limit, lambda: f"{self.out}\n{self.err}")

    def kill(self, host: str, what: str) -> float:
        """Kill the `agent` or the `zygote` of a host; returns when."""
        return kill_on(self.lab, host, what)

    def recovered(self, attempt: int, since: float) -> float:
        """Seconds until the last rank of an attempt had met the others."""
        return max(float(str(each["time"])) for each in self.begun(attempt).values()) - since


def kill_on(lab: Lab, host: str, what: str) -> float:
    """Kill the `agent` or the `zygote` of a host; returns when."""
    os.kill(find_on(lab, host, what), signal.SIGKILL)
    return time.time()


def find_on(lab: Lab, host: str, what: str) -> int:
    """The `agent` or the `zygote` of a host."""
    sign = {"agent": "exec(open(0", "zygote": "muster zygote"}[what]
    found = [pid for pid, command in lab.processes(host) if sign in command]
    # Its children may have the same command line, and one of them may just have ended.
    (pid,) = [pid for pid in found if parent(pid) not in (0, *found)]
    return pid


def parent(pid: int) -> int:
    """The parent of a process; 0 if the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def hosts_of(ranks: dict[int, dict[str, object]]) -> dict[int, object]:
    """The host of each rank."""
    return {rank: each["host"] for rank, each in sorted(ranks.items())}


def ended_well(done: Done) -> None:
    """All ranks of the last attempt have ended with 0."""
    assert done.code == 0, done.said

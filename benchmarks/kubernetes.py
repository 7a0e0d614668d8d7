"""Pods of the stand-in Kubernetes cluster beside the same lab hosts over ssh: `python -m benchmarks.kubernetes`.

What is measured is Muster and the real kubectl; the API server is that of tests/lab/kube, and a pod is a lab host. The
page docs/measurements/kubernetes.md also has what was measured on a real cluster.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.__main__ import measure
from benchmarks.commands import BIN, SCRIPTS, times
from benchmarks.experiment import Experiment, Missing
from benchmarks.lab_hosts import InHost, bring_up
from benchmarks.published import put_between
from benchmarks.table import Row, Sample, markdown

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "lab")]

from kube import KubeCluster  # noqa: E402

PAGE = ROOT / "docs" / "measurements" / "kubernetes.md"
BEGIN, END = "<!-- stand-in: python -m benchmarks.kubernetes writes this -->", "<!-- end of stand-in -->"
LIMIT = 240.0

FIRST = Row(name="first", what="2 pods x 2 ranks, command to the last rank's first all_reduce", peer="ssh", limit=1.2)
CONNECTED = Row(name="connected", what="32 pods connected", limit=5, absolute=True)
MEMORY = Row(name="memory", what="memory (PSS) of kubectl with 32 pods", unit="MB", limit=150, absolute=True)
KILLED = Row(
    name="killed", what="controller killed, until nothing of the job is left in 2 pods", limit=20, absolute=True
)


class InPods(Experiment):
    """Runs `muster run` in h1, in pods on all other hosts or over ssh on the same hosts."""

    pods: int

    def open(self) -> None:
        """Start hosts, API server and pods, once for all rounds."""
        if shutil.which("kubectl") is None:
            raise Missing("not measured: kubectl is not installed")
        self.lab = bring_up(self.pods + 1, self.folder)
        self.stack.callback(self.lab.stop)
        self.cluster = KubeCluster(self.lab, self.folder)
        self.stack.enter_context(self.cluster)
        for number in range(self.pods):
            self.cluster.add_pod(f"train-{number}", labels={"app": "train"})
        os.environ.update(self.cluster.env)  # for the commands that `InHost` starts

    def start(self, hosts: Sequence[str], *words: str | Path) -> InHost:
        """`muster run` with these options that choose hosts."""
        return InHost(self.lab, "h1", [BIN / "muster", "run", "--no-check", *hosts, *words], self.folder)

    @property
    def over_ssh(self) -> Sequence[str]:
        """Options for the hosts of the pods over ssh."""
        return ("-H", ",".join(self.lab.names[1:]))


IN_PODS = ("--pods", "app=train")


class FirstCollective(InPods):
    """Pods, then ssh."""

    pods = 2
    rows = (FIRST,)

    def round(self) -> Mapping[str, Sample]:
        """Both once."""
        return {FIRST.name: Sample(muster=self._once(IN_PODS), peer=self._once(self.over_ssh))}

    def _once(self, hosts: Sequence[str]) -> float:
        folder = self.new_folder("run")
        with self.start(hosts, "--nproc", "2", SCRIPTS / "first.py", folder) as command:
            _, code = command.finish(LIMIT)
            if code != 0:
                raise command.failed(f"ended with code {code}")
        return max(times(folder, "first-*", 4)) - command.begin


class ManyPods(InPods):
    """One trivial process in each of 32 pods: time until all are connected, and the memory of kubectl meanwhile."""

    pods = 32
    rows = (CONNECTED, MEMORY)

    def round(self) -> Mapping[str, Sample]:
        """Pods once, then ssh, which is only written to the samples."""
        seconds, memory = self._once(IN_PODS)
        also = {"ssh": self._once(self.over_ssh)[0]}
        return {CONNECTED.name: Sample(muster=seconds, also=also), MEMORY.name: Sample(muster=memory)}

    def _once(self, hosts: Sequence[str]) -> tuple[float, float]:
        memory = 0.0
        with self.start(hosts, "--nproc", "1", "--no-zygote", SCRIPTS / "trivial.py") as command:
            deadline = time.time() + LIMIT
            while command.read_words(0.2) and time.time() < deadline:
                memory = max(memory, kubectl_memory(str(self.cluster.kubeconfig)))
            _, code = command.finish(30)
            found = re.search(rb"connected ([0-9.]+) s", command.words)
            if code != 0 or found is None:
                raise command.failed(f"ended with code {code}")
        return float(found[1]), memory


class KilledController(InPods):
    """SIGKILL of the controller while ranks run."""

    pods = 2
    rows = (KILLED,)

    def round(self) -> Mapping[str, Sample]:
        """Kill one controller."""
        folder = self.new_folder("run")
        os.mkfifo(folder / "alive")  # nobody reads it, so the ranks wait there
        with self.start(IN_PODS, "--nproc", "1", SCRIPTS / "sit.py", folder) as command:
            command.wait_for_words(b"rendezvous at", LIMIT)
            killed = time.time()
        while self._left():
            if time.time() - killed > LIMIT:
                raise command.failed("left processes in the pods")
            time.sleep(0.02)
        return {KILLED.name: Sample(muster=time.time() - killed)}

    def _left(self) -> bool:
        """Whether a pod has more than its own process 1."""
        return any(
            "python" in line or "muster" in line for host in self.lab.names[1:] for _, line in self.lab.processes(host)
        )


def kubectl_memory(kubeconfig: str) -> float:
    """MB (PSS) of all kubectl that use this configuration."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text() == "kubectl\n" and kubeconfig.encode() in (
                process / "environ"
            ).read_bytes():
                rollup = (process / "smaps_rollup").read_text()
                total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        except OSError:
            pass  # it has ended
    return total / 1024


def main() -> int:
    """Measure all rows, print the table, and write it into the page."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.kubernetes", description="Compare pods with ssh.")
    p.add_argument("--rounds", metavar="N", type=int, default=5, help="rounds per row (default: 5)")
    p.add_argument("--only", metavar="ROW", choices=[row.name for row in (FIRST, CONNECTED, MEMORY, KILLED)])
    options = p.parse_args()
    about = machine.describe()
    results = [
        result
        for experiment in (FirstCollective(), ManyPods(), KilledController())
        if not options.only or any(row.name == options.only for row in experiment.rows)
        for result in measure(experiment, [row.name for row in experiment.rows], options.rounds)
    ]
    where = f"{about['CPU']}, {about['memory']}, torch {about['torch']}, {about['date']}"
    text = (
        f"{markdown(results)}\n\nMedians of {options.rounds} rounds on {where}; load {about['load before']} before, "
        f"{machine.load()} after."
    )
    print(text)
    if not options.only:
        put_between(PAGE, BEGIN, END, text)
    return int(any(result.verdict.startswith("failed") for result in results))


if __name__ == "__main__":
    sys.exit(main())

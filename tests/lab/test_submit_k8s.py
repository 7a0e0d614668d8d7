"""`muster submit --k8s` and the commands about such a job, with the real kubectl and a stand-in for Kubernetes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kube.cluster import KubeCluster
from launching import Done, HostJob, run_in
from waiting import patience, wait_until

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

SCRIPT = """\
import os, pathlib, sys, time

rank, how, flag = int(os.environ["RANK"]), sys.argv[1], pathlib.Path(sys.argv[2])
print("rank", rank, "of", os.environ["WORLD_SIZE"], "on", os.uname().nodename, os.environ.get("SHOWN"), flush=True)
if how == "fail" and rank == 1:
    sys.exit(7)
while how == "wait" and not flag.exists():
    time.sleep(0.05)
"""


class Laptop:
    """The user on h1, with kubectl, in a working directory with a script that the pods see at the same path."""

    def __init__(self, kube: KubeCluster, lab: Lab, folder: Path) -> None:
        self.kube = kube
        self.folder = folder
        self._lab = lab
        self.flag = folder / "flag"
        (folder / "train.py").write_text(SCRIPT)
        self._env = {**kube.env, "XDG_STATE_HOME": str(folder / "laptop")}

    def muster(self, command: str, *argv: str, timeout: float = 60) -> Done:
        """A command to its end."""
        return run_in(self._lab, "h1", self.folder, *argv, command=command, timeout=timeout, **self._env)

    def begin(self, command: str, *argv: str) -> HostJob:
        """A command that keeps running."""
        return HostJob(self._lab, "h1", self.folder, *argv, command=command, **self._env)

    def submit(self, *argv: str, how: str = "wait", nodes: int = 2) -> str:
        """Submit the script, and return the job's id."""
        options = ("--k8s", "--nodes", str(nodes), "--image", "train:1", "--nproc", "1", "--no-zygote", "--no-check")
        done = self.muster("submit", *options, *argv, str(self.folder / "train.py"), how, str(self.flag))
        assert done.code == 0, done.said
        return done.out.strip()

    def job(self) -> Any:
        """The Job as Kubernetes knows it."""
        (job,) = json.loads(self.kube.kubectl("get", "jobs", "-o", "json").stdout)["items"]
        return job

    def condition(self) -> str:
        """`Complete` or `Failed`, once it is over."""

        def over() -> str | None:
            conditions = self.job().get("status", {}).get("conditions", [])
            return next((each["type"] for each in conditions if each["type"] in ("Complete", "Failed")), None)

        return wait_until("the end of the Job", over, patience(60), lambda: json.dumps(self.job()), every=0.5)

    def pods(self) -> list[Any]:
        """Its pods, by index."""
        pods = json.loads(self.kube.kubectl("get", "pods", "-o", "json").stdout)["items"]
        return sorted(pods, key=lambda pod: pod["spec"]["hostname"])

    def status(self) -> str:
        """What `muster ps` shows in the column STATE."""
        listed = json.loads(self.muster("ps", "--json").out)
        return str(listed[0]["status"])

    def wait_for_status(self, pattern: str) -> None:
        """Until `muster ps` shows this."""
        wait_until(pattern, lambda: re.search(pattern, self.status()), patience(60), self.status, every=0.5)


@pytest.fixture
def laptop(kube: KubeCluster, cluster: Lab, shared: Path, request: pytest.FixtureRequest) -> Laptop:
    folder = shared / request.node.name
    folder.mkdir()
    return Laptop(kube, cluster, folder)


def test_a_submitted_job_runs_in_its_pods_and_is_followed_from_the_laptop(laptop: Laptop):
    job = laptop.submit("--env", "SHOWN=yes")
    assert (laptop.folder / f"train-{job[-4:]}.yaml").stat().st_mode & 0o777 == 0o600
    laptop.wait_for_status("^running on train-")
    following = laptop.begin("logs", "-f", job)
    wait_until("both ranks", lambda: len(re.findall(r"rank \d of 2", following.out)) == 2, patience(60))
    laptop.flag.touch()
    assert following.wait(60).code == 0
    assert "rank 1 of 2 on train-" in following.out
    assert " yes" in following.out
    assert laptop.condition() == "Complete"
    laptop.wait_for_status("^done$")


def test_a_failed_run_is_a_failed_job_and_its_output_stays(laptop: Laptop):
    job = laptop.submit(how="fail")
    assert laptop.condition() == "Failed"
    pods = laptop.pods()
    codes = [pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for pod in pods]
    assert codes == [7, 7]
    laptop.wait_for_status("^failed 7$")
    logs = laptop.muster("logs", job)
    assert "rank 1 on " in logs.out
    assert "exit code 7" in logs.out
    shown = laptop.muster("show", job)
    assert shown.code == 125
    assert "has ended with exit code 7" in shown.err


def test_stop_ends_all_pods_with_143(laptop: Laptop):
    job = laptop.submit()
    laptop.wait_for_status("^running")
    stopped = laptop.muster("stop", job)
    assert stopped.code == 0, stopped.said
    assert laptop.condition() == "Failed"
    codes = [pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for pod in laptop.pods()]
    assert codes == [143, 143]


def test_a_job_that_waits_for_nodes_says_why_and_stop_deletes_it(laptop: Laptop):
    job = laptop.submit("--gpus-per-node", "500")
    assert "waiting for hosts" in laptop.status()
    logs = laptop.muster("logs", job)
    assert logs.code == 125
    assert "has not started yet" in logs.err
    stopped = laptop.muster("stop", job)
    assert stopped.code == 0, stopped.said
    assert json.loads(laptop.kube.kubectl("get", "jobs,services,secrets", "-o", "json").stdout)["items"] == []


def test_a_job_that_was_deleted_is_stopped(laptop: Laptop):
    job = laptop.submit()
    laptop.wait_for_status("^running")
    laptop.kube.kubectl("delete", "job", f"train-{job[-4:]}", "--wait=false")
    laptop.wait_for_status("^stopped$")


def test_top_shows_the_job(laptop: Laptop):
    job = laptop.submit()
    laptop.wait_for_status("^running")
    top = laptop.muster("top", "--once", job)
    assert top.code == 0, top.said
    assert "train-" in top.out
    laptop.flag.touch()
    assert laptop.condition() == "Complete"


def test_a_refused_object_leaves_nothing_behind(laptop: Laptop):
    laptop.kube.deny("create", "jobs")
    argv = ("--k8s", "--nodes", "2", "--image", "train:1", "train.py")
    done = laptop.muster("submit", *argv)
    assert done.code == 125, done.said
    assert "add this rule to your Role" in done.err
    assert json.loads(laptop.kube.kubectl("get", "services,secrets", "-o", "json").stdout)["items"] == []
    assert not list(laptop.folder.glob("*.yaml"))
    assert not (laptop.folder / "laptop" / "muster" / "jobs").exists()


PAGE = Path(__file__).parents[2] / "docs" / "engines" / "kubernetes.md"


def test_the_manifest_of_the_documentation_runs(laptop: Laptop):
    found = re.search(r'```yaml title="train.yaml"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert found is not None
    command = '[muster, run, --nnodes, "2", train.py]'
    script = f'"{laptop.folder}/train.py", end, "{laptop.flag}"'
    here = found[1].replace(command, f'[muster, run, --nnodes, "2", --nproc, "1", --no-zygote, {script}]')
    here = here.replace("nvidia.com/gpu: 8", "nvidia.com/gpu: 0")
    assert here.count("\n") == found[1].count("\n")
    assert command not in here
    # In two steps: kubectl sends what it made itself as protobuf, which the stand-in does not read.
    secret = ("secret", "generic", "muster", f"--from-literal=token={'0f' * 32}", "--dry-run=client", "-o", "json")
    for text in (laptop.kube.kubectl("create", *secret).stdout, here):
        done = laptop.kube.kubectl("create", "-f", "-", input=text)
        assert done.returncode == 0, done.stderr
    assert laptop.condition() == "Complete", [pod["status"] for pod in laptop.pods()]
    first = laptop.pods()[0]["metadata"]["name"]
    printed = laptop.kube.kubectl("logs", first).stdout
    assert len(re.findall(r"rank \d of 2 on train-[01]", printed)) == 2, printed

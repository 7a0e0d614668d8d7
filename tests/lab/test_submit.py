"""`muster submit` on a cluster: real Slurm with a job that runs to its end, and the stand-in of PBS."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import MUSTER, PLAIN, Done
from pbs import PbsSite
from waiting import patience, wait_until

from muster.lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.getuid() != 0, reason="schedulers need a lab started as root"),
]

# Without torch: what is tried here is the way through the queue, not the training.
SCRIPT = """\
import os, pathlib, socket, sys, time
place = f"rank {os.environ['RANK']}/{os.environ['WORLD_SIZE']} on {socket.gethostname()}"
print(f"{place} was told {sys.argv[1:]}", flush=True)
pathlib.Path(f"said-{os.environ['RANK']}").touch()
until = time.monotonic() + 40  # a rank that fails before the others have spoken would silence them
while len(list(pathlib.Path().glob("said-*"))) < int(os.environ["WORLD_SIZE"]) and time.monotonic() < until:
    time.sleep(0.02)
sys.exit(int(os.environ.get("LEAVE_WITH", "0")))
"""
WAITING = """\
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved a checkpoint")))
print("waiting", flush=True)
time.sleep(100)
"""
AWKWARD = "it's $HOME\r\n#SBATCH --nodes=9"


@pytest.fixture
def folder(shared: Path, request: pytest.FixtureRequest) -> Path:
    folder = shared / re.sub(r"\W+", "-", request.node.name)
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "wait.py").write_text(WAITING)
    return folder


def submit(lab: Lab, folder: Path, *argv: str, **env: str) -> Done:
    """`muster submit` on h1."""
    state = folder / "state"
    with lab.popen(
        "h1",
        [MUSTER, "submit", *argv],
        cwd=str(folder),
        env={**PLAIN, "XDG_STATE_HOME": str(state), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, err = process.communicate(timeout=patience(60))
    return Done(code=process.returncode, out=out, err=err, state=state)


# --- Slurm ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm(shared: Path) -> Iterator[Lab]:
    with Lab(2, slurm=True, gpus=2, bind=(shared,)) as lab:
        yield lab


def slurm_job(lab: Lab, job: str) -> dict[str, str]:
    said = lab.run("h1", ["scontrol", "show", "job", job], timeout=60).stdout
    return dict(pair.split("=", 1) for pair in said.split() if "=" in pair)


def await_slurm(lab: Lab, job: str, folder: Path, *states: str) -> dict[str, str]:
    """Wait for a job to be in one of these states, and return what Slurm knows of it then."""

    def reached() -> dict[str, str] | None:
        known = slurm_job(lab, job)
        return known if known.get("JobState") in states else None

    def said() -> str:
        logs = [path.read_text(errors="replace") for path in folder.glob("*.out")]
        return f"{slurm_job(lab, job)}\n" + "\n".join(logs)

    return wait_until(f"job {job} to be {' or '.join(states)}", reached, 90, said)


def test_a_job_goes_through_slurm_and_its_ranks_get_what_was_typed(slurm: Lab, folder: Path) -> None:
    asked = ("--nodes", "2", "--gpus-per-node", "2", "--time", "5m", "--mem", "200M", "--partition", "main")
    done = submit(slurm, folder, "--slurm", "--name", "big", *asked, "--no-zygote", "train.py", "--lr", AWKWARD)
    assert done.code == 0, done.said
    job = done.out.strip()
    known = await_slurm(slurm, job, folder, "COMPLETED", "FAILED")
    log = (folder / f"big-{job}.out").read_text()
    assert known["JobState"] == "COMPLETED", log
    assert (known["JobName"], known["NumNodes"], known["TimeLimit"]) == ("big", "2", "00:05:00")
    assert (known["MinMemoryNode"], known["TresPerNode"]) == ("200M", "gres:gpu:2")
    ranks = re.findall(r"rank (\d)/4 on (h\d) was told (.*)", log)
    assert sorted(ranks) == [(str(rank), f"h{rank // 2 + 1}", str(["--lr", AWKWARD])) for rank in range(4)], log
    assert f"tail -F big-{job}.out" in done.err
    assert (folder / f"big-{job}.sbatch").read_text().startswith("#!/bin/bash\n#SBATCH --job-name=big\n")


def test_the_exit_code_of_the_script_is_that_of_the_job(slurm: Lab, folder: Path) -> None:
    done = submit(slurm, folder, "--slurm", "--no-zygote", "--env", "LEAVE_WITH=7", "train.py")
    assert await_slurm(slurm, done.out.strip(), folder, "COMPLETED", "FAILED")["ExitCode"] == "7:0"


def test_a_signal_for_the_batch_script_reaches_the_ranks(slurm: Lab, folder: Path) -> None:
    job = submit(slurm, folder, "--slurm", "--no-zygote", "wait.py").out.strip()
    log = folder / f"wait-{job}.out"
    wait_until(
        "the rank", lambda: log.exists() and "waiting" in log.read_text(), 60, lambda: str(slurm_job(slurm, job))
    )
    slurm.run("h1", ["scancel", "--batch", "--signal=TERM", job], timeout=60)
    await_slurm(slurm, job, folder, "COMPLETED", "FAILED", "CANCELLED")
    assert "saved a checkpoint" in log.read_text()


def test_a_partition_that_slurm_does_not_have_is_reported_with_its_message(slurm: Lab, folder: Path) -> None:
    done = submit(slurm, folder, "--slurm", "--partition", "nope", "train.py")
    assert (done.code, done.out) == (125, ""), done.said
    assert re.search("^error: sbatch rejected the job: .*Invalid partition name specified", done.err), done.said
    assert "hint: `sinfo -s` lists the partitions" in done.err
    assert list(folder.glob("*.sbatch")) == []


def test_more_gpus_than_a_node_has_are_reported(slurm: Lab, folder: Path) -> None:
    done = submit(slurm, folder, "--slurm", "--gpus-per-node", "9", "train.py")
    assert done.code == 125, done.said
    assert "Requested node configuration is not available" in done.err
    assert "hint: `sinfo -o" in done.err


def test_what_is_typed_wins_over_a_variable_of_sbatch(slurm: Lab, folder: Path) -> None:
    argv = ("--slurm", "--partition", "main", "--time", "7m", "--extra", "--hold", "train.py")
    done = submit(slurm, folder, *argv, SBATCH_PARTITION="nope", SBATCH_TIMELIMIT="1")
    assert done.code == 0, done.said
    job = done.out.strip()
    assert slurm_job(slurm, job)["TimeLimit"] == "00:07:00"
    slurm.run("h1", ["scancel", job], timeout=60)


def test_an_extra_line_wins_over_ours(slurm: Lab, folder: Path) -> None:
    done = submit(
        slurm, folder, "--slurm", "--nodes", "1", "--extra", "--nodes=2 --hold", "--extra", "-o x.log", "train.py"
    )
    job = done.out.strip()
    known = slurm_job(slurm, job)
    assert (known["NumNodes"], known["StdOut"]) == ("2-2", f"{folder}/x.log")
    assert "tail" not in done.err
    slurm.run("h1", ["scancel", job], timeout=60)


# --- PBS ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pbs(slurm: Lab, shared: Path) -> Iterator[PbsSite]:
    with PbsSite(slurm, shared, ngpus=2) as site:
        yield site


def submit_to_pbs(pbs: PbsSite, folder: Path, *argv: str, **env: str) -> Done:
    return submit(pbs.lab, folder, "--pbs", *argv, PATH=pbs.path, HOME=str(pbs.home), **env)


def test_a_job_goes_through_pbs_and_is_spread_over_its_hosts(pbs: PbsSite, folder: Path) -> None:
    asked = ("--nodes", "2", "--gpus-per-node", "2", "--time", "90m", "--queue", "workq", "--account", "ab12")
    told = ("--no-zygote", "train.py", AWKWARD)
    done = submit_to_pbs(pbs, folder, *asked, "--env", "LEAVE_WITH", *told, LEAVE_WITH="7")
    assert done.code == 0, done.said
    job = pbs.job(done.out.strip())
    # The variable came along by name, and the exit code of the script is that of the job.
    assert job.wait(90) == 7, job.output
    assert job.hosts == ["h1", "h2"]
    assert (job.record["queue"], job.record["account"]) == ("workq", "ab12")
    ranks = re.findall(r"rank (\d)/4 on (h\d) was told (.*)", job.output)
    placed = [("0", "h1"), ("1", "h1"), ("2", "h2"), ("3", "h2")]
    assert sorted(ranks) == [(*place, str([AWKWARD])) for place in placed], job.output
    number = job.id.partition(".")[0]
    assert f"tail -F train.o{number}" in done.err
    assert job.path == folder / f"train.o{number}"
    assert (folder / f"train-{number}.pbs").is_file()


def test_extra_lines_are_what_pbs_uses_although_the_first_of_two_wins(pbs: PbsSite, folder: Path) -> None:
    extra = ("--extra", "-l place=pack", "--extra", "-l walltime=0:07:00", "--extra", "-N other")
    asked = ("--nodes", "2", "--time", "5m", *extra, "--extra", "-o none/x.log", "--no-zygote")
    done = submit_to_pbs(pbs, folder, *asked, "train.py")
    assert done.code == 0, done.said
    job = pbs.job(done.out.strip())
    assert job.wait(90) == 0, job.record["comment"]
    assert (job.record["place"], job.record["walltime"], job.record["name"]) == ("pack", 420, "other")
    assert job.hosts == ["h1"], "it was not held for a directory that is missing, either"
    assert (folder / f"other-{job.id.partition('.')[0]}.pbs").is_file()


def test_sums_instead_of_chunks_go_to_pbs_as_they_are(pbs: PbsSite, folder: Path) -> None:
    extra = ("--extra", "-P ab12", "--extra", "-l ncpus=4,ngpus=2")
    done = submit_to_pbs(pbs, folder, "--time", "2h", *extra, "--no-zygote", "train.py")
    assert done.code == 0, done.said
    job = pbs.job(done.out.strip())
    assert job.wait(90) == 0, job.output
    assert job.record["project"] == "ab12"


def test_a_refusal_of_pbs_is_reported_with_its_message(pbs: PbsSite, folder: Path) -> None:
    done = submit_to_pbs(pbs, folder, "--extra", "-l colour=red", "train.py")
    assert (done.code, done.out) == (125, ""), done.said
    assert "error: qsub rejected the job: Unknown resource  Resource_List.colour\n" in done.err, done.said
    assert list(folder.glob("*.pbs")) == []

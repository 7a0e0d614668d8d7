"""Hosts that are up and bad: a spare replaces them, later jobs know them, and good hosts are not accused."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Done, HostJob, alive
from waiting import patience

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

SCRIPT = """\
import os, signal, socket, sys, time
mode, host, rank = sys.argv[1], socket.gethostname(), int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if mode == "save":
    open("/tmp/step.bin", "wb").write(bytes(1 << 20))
if mode == "gpu" and host == "h2":
    with open("/dev/kmsg", "a") as log:
        log.write("3,9,9,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.\\n")
    raise RuntimeError("CUDA error: unspecified launch failure")
if mode == "cuda" and rank == 0 and attempt == 0:
    raise RuntimeError("NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error")
if mode == "crash" and host == "h2" or mode == "bug" and rank == 1:
    os.kill(os.getpid(), signal.SIGSEGV)
if mode == "rank0" and rank == 0 and attempt < 2:
    raise ValueError(f"bad sample {attempt}")
if mode == "write" and host == "h2":
    open(sys.argv[2], "w").write("x")
if mode == "write" and host != "h2" and attempt == 0:
    time.sleep(2)
    raise RuntimeError("nobody came")
print("rank", rank, "is done on", host, flush=True)
"""

OPTIONS = ("--no-zygote", "--no-check", "--spares", "1", "--restarts", "5", "-H")


class Site:
    """A lab whose jobs share a history."""

    def __init__(self, lab: Lab, shared: Path, state: Path) -> None:
        self.lab = lab
        self.shared = shared
        self.state = state
        (shared / "job.py").write_text(SCRIPT)

    def muster(self, *argv: str, command: str = "run") -> Done:
        """Run a command on h1, to its end."""
        return HostJob(self.lab, "h1", self.shared, *argv, command=command, XDG_STATE_HOME=str(self.state)).wait(150)

    def shell(self, host: str, command: str) -> None:
        """Run a command on a host."""
        done = self.lab.run(host, ["sh", "-c", command], timeout=30)
        assert done.returncode == 0, done


@pytest.fixture
def site(cluster: Lab, shared: Path, tmp_path: Path) -> Iterator[Site]:
    yield Site(cluster, shared, shared / f"history-{tmp_path.name}")
    assert not alive(cluster, cluster.names)


def where(done: Done) -> dict[str, str]:
    """The hosts on which ranks were done in the last attempt."""
    return dict(re.findall(r"rank (\d+) is done on (\S+)", done.out))


def test_a_host_with_a_full_disk_is_replaced_shown_avoided_and_forgotten_when_it_passes(site: Site):
    site.lab.fill_disk("h2")
    try:
        done = site.muster(*OPTIONS, "h1,h2,h3", "job.py", "save")
    finally:
        site.lab.heal("h2")
    assert done.code == 0, done.said
    assert "muster: h2 runs no more ranks of this job: the disk of /tmp was full (" in done.err
    assert where(done)["1"] == "h3"

    again = site.muster("--no-zygote", "--no-check", "-H", "h1,h2", "job.py", "save")
    assert again.code == 0, again.said
    pattern = (
        r"muster: h2: the disk of /tmp was full \(.*\) \d+ s ago \(job job-\w{4}\); use --avoid-bad to leave it out"
    )
    assert re.search(pattern, again.err), again.said

    avoided = site.muster("--no-zygote", "--no-check", "--avoid-bad", "-H", "h1,h2", "job.py", "save")
    assert avoided.code == 0, avoided.said
    assert "muster: h2 is left out (--avoid-bad): the disk of /tmp was full" in avoided.err
    assert where(avoided) == {"0": "h1"}

    none = site.muster("--avoid-bad", "-H", "h2", "job.py", "save")
    assert none.code == 2, none.said
    assert "--avoid-bad leaves no host: it leaves out h2 (the disk of /tmp was full" in none.err

    checked = site.muster("-H", "h1,h2", command="check")
    assert "warning: h2: the disk of /tmp was full" in checked.out
    assert "muster check --deep -H h2" in checked.out


def test_a_host_whose_gpu_fell_off_the_bus_is_replaced(site: Site):
    # Hosts of a lab have no kernel log; that of their common kernel would be that of all of them.
    site.shell("h2", ": > /dev/kmsg")
    try:
        done = site.muster(*OPTIONS, "h1,h2,h3", "job.py", "gpu")
    finally:
        site.shell("h2", "rm /dev/kmsg")
    assert done.code == 0, done.said
    assert "h2 runs no more ranks of this job: the GPU at 0000:3b:00 fell off the bus (Xid 79)" in done.err
    assert "the GPU at 0000:3b:00 fell off the bus (Xid 79) on h2, according to its kernel log" in done.err
    assert where(done) == {"0": "h1", "1": "h3"}


LOST = "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"


def test_a_host_whose_gpu_is_lost_according_to_nvidia_smi_is_replaced(site: Site):
    smi = "/usr/local/bin/nvidia-smi"
    site.shell("h2", f"printf '#!/bin/sh\necho \"{LOST}\"\nexit 15\n' > {smi}; chmod 755 {smi}")
    try:
        done = site.muster(*OPTIONS, "h1,h2,h3", "job.py", "cuda")
    finally:
        site.shell("h2", f"rm {smi}")
    assert done.code == 0, done.said
    assert "h2 runs no more ranks of this job: a GPU fell off the bus, according to nvidia-smi" in done.err
    assert where(done) == {"0": "h1", "1": "h3"}


def test_a_bad_host_that_nothing_can_replace_is_used_again_with_a_warning(site: Site):
    site.shell("h2", ": > /dev/kmsg")
    try:
        done = site.muster("--no-zygote", "--no-check", "--restarts", "1", "-H", "h1,h2", "job.py", "gpu")
    finally:
        site.shell("h2", "rm /dev/kmsg")
    assert done.code == 1, done.said
    assert "h2 is used again, because no host can replace it: the GPU at 0000:3b:00 fell off the bus" in done.err
    assert "Muster remembers h2 as bad for later jobs: use --avoid-bad to leave it out" in done.err


def test_a_host_whose_ranks_crash_twice_is_replaced_and_known_when_that_helped(site: Site):
    done = site.muster(*OPTIONS, "h1,h2,h3", "job.py", "crash")
    assert done.code == 0, done.said
    assert "h2 runs no more ranks of this job: its ranks failed first twice while the other hosts were fine" in done.err
    assert where(done) == {"0": "h1", "1": "h3"}
    again = site.muster("--no-zygote", "--no-check", "-H", "h1,h2", "job.py", "save")
    assert "muster: h2: its ranks failed first twice while the other hosts were fine" in again.err


def test_a_host_is_not_to_blame_if_the_rank_crashes_on_its_replacement_too(site: Site):
    done = site.muster(*OPTIONS, "h1,h2,h3", "job.py", "bug")
    assert done.code == 128 + 11, done.said
    assert "h2 is not to blame, because the same failure happened on h3" in done.err
    assert "the restart failed at the same place without any progress" in done.err
    assert done.err.count("failed first,") == 3, done.said
    again = site.muster("--no-zygote", "--no-check", "-H", "h1,h2,h3", "job.py", "save")
    assert "--avoid-bad" not in again.err, again.said


def test_a_script_that_fails_on_rank_0_does_not_blame_the_first_host(site: Site):
    done = site.muster(*OPTIONS, "h1,h2,h3", "job.py", "rank0")
    assert done.code == 0, done.said
    assert "no more ranks" not in done.err, done.said
    assert where(done)["0"] == "h1"


@pytest.fixture
def disk(shared: Path) -> Iterator[Path]:
    """A disk of its own, in a file, that all hosts of the module see."""
    image, point = shared / "image", shared / "disk"
    point.mkdir()
    made = f"truncate -s 8M {image} && mkfs.ext4 -q -F {image} && mount -o loop,errors=remount-ro {image} {point}"
    if subprocess.run(["sh", "-c", made], timeout=patience(30), capture_output=True).returncode != 0:
        pytest.skip("no loop devices here")
    yield point
    subprocess.run(["umount", str(point)], timeout=patience(30), check=True)


@pytest.fixture
def site_with_disk(disk: Path, shared: Path) -> Iterator[Site]:
    with Lab(3, bind=(shared,)) as lab:
        yield Site(lab, shared, shared / "history-disk")


def test_a_host_whose_disk_failed_or_blocks_its_processes_is_replaced(site_with_disk: Site, disk: Path):
    site = site_with_disk
    subprocess.run(["fsfreeze", "--freeze", str(disk)], timeout=patience(30), check=True)
    try:
        frozen = site.muster(*OPTIONS, "h1,h2,h3", "job.py", "write", str(disk / "x"))
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(disk)], timeout=patience(30), check=True)
    assert frozen.code == 0, frozen.said
    assert "h2: could not kill process" in frozen.err
    assert where(frozen) == {"0": "h1", "1": "h3"}

    source = subprocess.run(
        ["findmnt", "-no", "SOURCE", str(disk)], timeout=patience(30), capture_output=True, text=True
    )
    Path(f"/sys/fs/ext4/{Path(source.stdout.strip()).name}/trigger_fs_error").write_text("1")
    failed = site.muster(*OPTIONS, "h1,h2,h3", "job.py", "write", str(disk / "y"))
    assert failed.code == 0, failed.said
    assert "muster: h2: a process was blocked in the kernel (disk or driver)" in failed.err
    assert (
        f"h2 runs no more ranks of this job: the kernel made the disk of {disk} read-only after an error" in failed.err
    )
    assert f"the kernel made the disk of {disk} read-only after an error on h2" in failed.err

"""What is found out when a rank has failed: the files its exception is about, disks, memory."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.controller.diagnosis.rank_end import RankEnd, with_facts
from muster.rank import post_mortem
from muster.shared import machine

FAILED = RankEnd(rank=0, host="h1", status=1, time=0.0)


def raised(fail: Callable[[], object]) -> BaseException:
    try:
        fail()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def paths(fail: Callable[[], object]) -> list[str]:
    error = raised(fail)
    return post_mortem.paths_of(error, error.__traceback__)


def test_the_file_that_an_exception_names_is_found(tmp_path: Path):
    missing = tmp_path / "set" / "train.bin"
    assert paths(lambda: missing.open()) == [str(missing)]


def test_the_file_that_the_first_of_several_exceptions_names_is_found(tmp_path: Path):
    def fail() -> None:
        try:
            (tmp_path / "x").open()
        except OSError as error:
            raise ValueError("no data") from error

    assert paths(fail) == [str(tmp_path / "x")]


def test_where_a_file_could_not_be_written_the_innermost_path_comes_first(tmp_path: Path):
    def save(f: Path) -> None:
        word = "adam"  # is no path
        raise RuntimeError(f"{word}: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")

    def train(out: str) -> None:
        save(tmp_path / "step-7.pt")

    assert paths(lambda: train("/results/run"))[:2] == [str(tmp_path / "step-7.pt"), "/results/run"]


def test_an_open_file_counts_as_its_path(tmp_path: Path):
    def write() -> None:
        with (tmp_path / "out.bin").open("wb") as file:
            assert file
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert str(tmp_path / "out.bin") in paths(write)


def test_the_variables_of_an_ordinary_exception_are_not_looked_at(tmp_path: Path):
    def fail(path: str) -> None:
        raise ValueError("bad sample")

    assert paths(lambda: fail(str(tmp_path))) == []


def test_variables_that_fail_at_a_look_do_no_harm(tmp_path: Path):
    class Sulky:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError("do not touch me")

    def save() -> None:
        sulky = Sulky()
        assert sulky is not None
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "x"))

    assert paths(save)[0] == str(tmp_path / "x")


@pytest.mark.parametrize("text", ["https://host/a/b", "<torch>/x", "--out/x", "a\nb/c", "", "x" * 5000 + "/y"])
def test_what_is_no_path_is_not_taken_for_one(text: str):
    def save(value: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert not any(text and text in path for path in paths(lambda: save(text)))


def test_the_facts_have_the_room_under_a_path_that_is_not_there(tmp_path: Path):
    missing = str(tmp_path / "a" / "b.pt")
    found = with_facts(FAILED, post_mortem.facts((0, 0), [missing]))
    (disk,) = found.disks
    assert (disk.path, disk.folder, disk.exists) == (missing, str(tmp_path), False)
    assert 0 <= disk.free <= disk.total
    assert found.shm.total > 0
    assert found.memory.total > 0


def test_a_disk_that_cannot_be_written_is_not_called_full():
    point = next(
        (
            fields[1]
            for fields in map(str.split, Path("/proc/self/mounts").read_text().splitlines())
            if "ro" in fields[3].split(",") and os.path.isdir(fields[1])
        ),
        None,
    )
    if point is None:
        pytest.skip("every file system here can be written")
    assert post_mortem.facts((0, 0), [point])["disks"] == []


def test_nothing_has_been_killed_for_memory_between_two_looks():
    memory = with_facts(FAILED, post_mortem.facts(machine.memory_kills(), [])).memory
    assert memory.group_kills in (0, None)


def test_the_control_groups_of_this_process_are_folders_the_own_one_first():
    groups = machine.control_groups("memory")
    if not groups:
        pytest.skip("no control groups are to be seen here")
    assert all(os.path.isdir(group) for group in groups)
    assert [len(group) for group in groups] == sorted((len(group) for group in groups), reverse=True)
    assert str(os.getpid()) in Path(groups[0], "cgroup.procs").read_text().split()


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "33 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
DOCKER = "700 690 0:28 /docker/0f3a /sys/fs/cgroup/memory ro,nosuid master:12 - cgroup cgroup rw,memory\n"
MEMORY = "/sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("mountinfo", "cgroup", "folders"),
    [
        (
            V2,
            "0::/system.slice/slurmstepd.scope/job_7/step_0\n",
            [
                "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0",
                "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7",
                "/sys/fs/cgroup/system.slice/slurmstepd.scope",
                "/sys/fs/cgroup/system.slice",
                "/sys/fs/cgroup",
            ],
        ),
        (V2, "0::/\n", ["/sys/fs/cgroup"]),  # in a container with a namespace of its own
        (V2, "0::/../other.scope\n", ["/sys/fs/cgroup/other.scope", "/sys/fs/cgroup"]),
        (V1, "4:memory:/slurm/job_7\n1:cpu:/\n0::/\n", [f"{MEMORY}/slurm/job_7", f"{MEMORY}/slurm", MEMORY]),
        (DOCKER, "4:memory:/docker/0f3a/child\n", [f"{MEMORY}/child", MEMORY]),
        (DOCKER, "4:memory:/elsewhere\n", [MEMORY]),
        ("", "0::/\n", []),
    ],
)
def test_control_groups_are_found_under_both_versions_and_in_containers(
    tmp_path: Path, mountinfo: str, cgroup: str, folders: list[str]
):
    (tmp_path / "mountinfo").write_text(mountinfo)
    (tmp_path / "cgroup").write_text(cgroup)
    assert machine.control_groups("memory", str(tmp_path)) == folders


def test_a_disk_that_never_answers_is_waited_for_once_and_not_for_long(tmp_path: Path):
    fifo = tmp_path / "never"
    os.mkfifo(fifo)
    # A thread that hangs in open() of a pipe nobody writes to, as statvfs does on a server that has gone.
    code = (
        "import os, sys, time\nfrom muster.rank import post_mortem\n"
        "post_mortem._room = lambda path: None if path == '/dev/shm' else open(path) and None\n"
        "begin = time.monotonic()\nfor _ in range(40): post_mortem.facts((0, 0), [sys.argv[1]])\n"
        "print(time.monotonic() - begin, flush=True)\nos._exit(0)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(fifo)], stdout=subprocess.PIPE, text=True)
    try:
        took = float(process.communicate(timeout=60)[0])
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 0.4 < took < 10  # 0.5 s once, not 40 times


MOUNTS = r"""
22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
30 22 0:26 / /tmp rw,nosuid - tmpfs tmpfs rw,size=1g
31 22 0:40 / /home rw,relatime - nfs4 server:/home rw,vers=4.2
32 22 8:1 / /scratch rw,relatime - xfs /dev/sda1 ro,attr2
33 22 8:2 / /local\040disk rw,relatime - ext4 /dev/sdb1 rw,errors=remount-ro,emergency_ro
34 22 8:3 / /archive ro,relatime - ext4 /dev/sdc1 ro
35 30 0:50 / /tmp rw - tmpfs other rw
36 22 0:51 / /home/me/data rw - fuse.sshfs me@box:/ rw
broken
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/ckpt/a.pt", ("ext4", "/", False)),
        ("/tmp/a", ("tmpfs", "/tmp", False)),
        ("/tmpfile", ("ext4", "/", False)),
        ("/home/me", ("nfs4", "/home", False)),
        ("/home/me/data/x", ("fuse.sshfs", "/home/me/data", False)),
        ("/scratch", ("xfs", "/scratch", True)),
        ("/local disk/x", ("ext4", "/local disk", True)),
        ("/archive/x", ("ext4", "/archive", False)),
    ],
)
def test_the_type_of_a_file_system_is_found_and_whether_the_kernel_made_it_read_only(
    path: str, expected: tuple[str, str, bool]
):
    assert post_mortem._file_system(path, MOUNTS) == expected

"""What the lab reads about the machine it runs on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from waiting import ending

from muster.errors import LabError
from muster.lab import Lab, loopback_host, system_programs
from muster.lab.cgroups import Hierarchies, read_hierarchies
from muster.lab.mounts import file_systems_of, hidden_folders

HYBRID = """\
24 1 0:22 / /sys rw - sysfs sysfs rw
30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/freezer rw shared:9 - cgroup cgroup rw,freezer
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""

UNIFIED = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"


def test_root_uses_the_hierarchies_that_are_mounted() -> None:
    assert read_hierarchies(HYBRID, "0::/\n", root=True) == Hierarchies(
        unified=Path("/sys/fs/cgroup/unified"),
        freezer_v1=Path("/sys/fs/cgroup/freezer"),
        cpu_v1=Path("/sys/fs/cgroup/cpu,cpuacct"),
    )
    assert read_hierarchies("", "", root=True) == Hierarchies()


def test_a_user_can_at_most_use_the_group_beside_their_own() -> None:
    own = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/shell.scope\n"
    assert read_hierarchies(UNIFIED, own, root=False) == Hierarchies(
        unified=Path("/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice")
    )
    assert read_hierarchies(HYBRID, "0::/\n", root=False).freezer_v1 is None


MOUNTS = """\
1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 8:2 / /home rw - ext4 /dev/sda2 rw
3 2 0:50 / /home/me/big\\040data rw - nfs4 server:/data rw
4 1 0:51 / /tmp rw - tmpfs tmpfs rw
5 1 0:52 / /snap/core/1 ro - squashfs /dev/loop0 ro
"""


def test_hosts_see_the_file_systems_of_the_users_work_and_no_others() -> None:
    assert file_systems_of(["/usr/bin", "/tmp/work"], MOUNTS) == ()
    assert file_systems_of(["/home/me", "/home/me/big data/run1", "/usr"], MOUNTS) == (
        "/home",
        "/home/me/big data",
    )


@pytest.mark.parametrize(("program", "package"), [("sshd", "openssh-server"), ("nft", "nftables"), ("ip", "iproute2")])
def test_a_missing_program_is_an_error_that_names_its_package(
    program: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(system_programs, "SYSTEM_PATH", str(tmp_path))
    with pytest.raises(LabError, match=f"the lab needs `{program}`") as caught:
        system_programs.find(program)
    assert caught.value.hint == f"install it: sudo apt-get install {package}"


@pytest.mark.parametrize("hosts", [0, -1, 254])
def test_a_lab_without_addresses_for_its_hosts_is_refused(hosts: int) -> None:
    with pytest.raises(LabError, match="number of hosts must be from 1 to 253"):
        Lab(hosts, kind="loopback")


def test_wrong_sizes_and_folders_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="invalid size `lots`"):
        Lab(1, disk="lots", kind="loopback")
    with pytest.raises(LabError, match="it is not a directory"):
        Lab(1, bind=(tmp_path / "missing",), kind="loopback")


def test_a_lab_that_is_not_up_says_so() -> None:
    with pytest.raises(LabError, match="the lab is not running"):
        Lab(1, kind="loopback").ssh_argv()


def test_work_below_tmp_is_shared_though_each_host_has_its_own_tmp() -> None:
    paths = ["/tmp/me/project", "/tmp/me/project/.venv", "/usr", "/tmp", "/run/user/1000/env"]
    assert hidden_folders(paths) == ("/run/user/1000/env", "/tmp/me/project")


@pytest.mark.parametrize("carried", ["in its environment", "by the command that puts it there"])
def test_a_process_that_carries_the_mark_of_a_loopback_host_belongs_to_it(carried: str) -> None:
    mark = f"{loopback_host.MARK_NAME}=muster-lab-test/h1"
    # `env` becomes its command, as the lab starts it; the shell stays where `env` is for a moment before.
    starts = ["env", mark] if carried == "in its environment" else ["sh", "-c", '"$@"; exit', mark]
    waits = [sys.executable, "-c", "print(flush=True); input()"]
    with ending(subprocess.Popen([*starts, *waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.pid in loopback_host.members(-1, "muster-lab-test/h1")
        assert process.pid not in loopback_host.members(-1, "muster-lab-test/h2")

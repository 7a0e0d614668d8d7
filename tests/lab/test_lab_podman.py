"""Containers in lab hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from muster.lab import Lab
from muster.lab.podman_service import IMAGE, volumes
from muster.lab.system_programs import SYSTEM_PATH

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.getuid() != 0, reason="podman needs a lab started as root"),
    pytest.mark.skipif(shutil.which("podman", path=SYSTEM_PATH) is None, reason="apt-get install podman crun"),
]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    before = machine()
    with Lab(2, podman=True, gpus=1) as lab:
        yield lab
    left = machine() - before
    # Containers of tests in another file have some too, for as long as these run.
    wait_until("all to go that podman left", lambda: not left & machine(), 60, lambda: str(left & machine()))


def machine() -> set[str]:
    """What containers could leave behind: mounts and control groups."""
    groups = {str(path) for depth in ("*", "*/*") for path in Path("/sys/fs/cgroup").glob(f"{depth}/*pod*")}
    return groups | set(Path("/proc/self/mountinfo").read_text().splitlines())


def podman(lab: Lab, host: str, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return lab.run(host, ["podman", *words], timeout=timeout)


def test_python_runs_in_a_container_with_the_network_of_its_host(lab: Lab) -> None:
    code = "import os, socket, sys; socket.create_server((sys.argv[1], 0)); print(socket.gethostname(), os.getpid())"
    for host in lab.names:
        inside = [*volumes(), IMAGE, sys.executable, "-c", code, lab.address(host)]
        done = podman(lab, host, "run", "--rm", "--network=host", *inside)
        assert done.stdout == f"{host} 1\n", done.stderr


def test_a_container_sees_its_own_files_and_only_the_devices_it_is_given(lab: Lab) -> None:
    look = ["sh", "-c", "ls -d /dev/nvidia0 /run/muster-lab 2>/dev/null"]
    run = ["run", "--rm", "--network=host", "--volume=/usr:/usr:ro"]
    assert podman(lab, "h1", *run, IMAGE, *look).stdout == ""
    assert podman(lab, "h1", *run, "--device=/dev/nvidia0", IMAGE, *look).stdout == "/dev/nvidia0\n"


def test_an_exit_code_comes_out_of_a_container(lab: Lab) -> None:
    assert podman(lab, "h1", "run", "--rm", "--volume=/usr:/usr:ro", IMAGE, "sh", "-c", "exit 7").returncode == 7


def test_a_container_in_the_background_can_be_stopped(lab: Lab) -> None:
    run = ["run", "--detach", "--name=long", "--network=host", "--volume=/usr:/usr:ro"]
    started = podman(lab, "h2", *run, IMAGE, "sleep", "600")
    assert started.returncode == 0, started.stderr
    assert podman(lab, "h2", "exec", "long", "hostname").stdout == "h2\n"
    wait_until("the container", lambda: "sleep 600" in str(lab.processes("h2")), 20)
    assert podman(lab, "h2", "rm", "--force", "--time=0", "long").returncode == 0
    wait_until("the container's end", lambda: not lab.processes("h2"), 30, lambda: str(lab.processes("h2")))


def test_a_rebooted_host_has_the_image(lab: Lab) -> None:
    podman(lab, "h2", "run", "--detach", "--volume=/usr:/usr:ro", "--network=host", IMAGE, "sleep", "600")
    lab.reboot("h2")
    assert podman(lab, "h2", "ps", "--all", "--quiet").stdout == ""
    assert podman(lab, "h2", "images", "--format={{.Repository}}:{{.Tag}}").stdout == f"{IMAGE}\n"

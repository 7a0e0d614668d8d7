"""Labs with limits, started by a user who is not root.

The user is made inside a lab host, whose /etc nobody else sees, and gives up every capability. Where the tests
themselves run without root, that user is the one who runs them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from waiting import wait_until

from muster.lab import Lab
from muster.lab.system_programs import SYSTEM_PATH

pytestmark = pytest.mark.lab

RunAsUser = Callable[[str], str]

NO_CAPABILITIES = ["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"]


@pytest.fixture(scope="module")
def as_user() -> Iterator[RunAsUser]:
    """Runs Python code as a user without any rights, and returns what it prints."""
    if os.getuid() != 0:
        yield lambda code: _output(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True))
        return
    with Lab(1, disk="512m") as lab:
        # The interpreter may lie in root's home folder.
        prepare = "useradd --create-home --shell /bin/bash tester && chmod 755 /root"
        made = lab.run("h1", ["sh", "-c", prepare], timeout=60)
        assert made.returncode == 0, made.stderr
        become = ["setpriv", "--reuid=tester", "--regid=tester", "--clear-groups", *NO_CAPABILITIES]
        clean = ["env", "-i", "HOME=/home/tester", "PATH=/usr/bin:/bin"]

        def run(code: str) -> str:
            argv = [*become, *clean, sys.executable, "-c", code]
            return _output(lab.run("h1", argv, timeout=110))

        yield run
        wait_until("what the user's lab left to end", lambda: lab.processes("h1") == [], 20)
        left = lab.run("h1", ["sh", "-c", "ls -d /tmp/muster-lab-*"], timeout=30)
        assert left.stdout == "", "the user's lab left its folder"


def _output(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


COMMON = """
import os, subprocess, sys, time
from muster.errors import LabError
from muster.lab import Lab

def ssh(lab, host, command):
    argv = [*lab.ssh_argv(), "-o", "BatchMode=yes", host, command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    return done.stdout.strip() or done.stderr.strip()

def until(check):
    deadline = time.monotonic() + 30
    while not check() and time.monotonic() < deadline:
        time.sleep(0.02)

def refused(fault, *arguments):
    try:
        fault(*arguments)
    except LabError as error:
        return error.message
    return "done"
"""


def test_a_user_gets_hosts_in_a_user_namespace_with_cables_to_cut(as_user: RunAsUser) -> None:
    said = as_user(
        COMMON
        + """
with Lab(2) as lab:
    print(lab.kind, "|", lab.limits[0])
    print(lab.address("h2"), ssh(lab, "h2", "hostname"), ssh(lab, "h1", "ssh h2 whoami") == ssh(lab, "h1", "whoami"))
    lab.run("h1", ["sh", "-c", "echo mine > ~/note; echo mine > /tmp/note"], timeout=30)
    look = "cat ~/note /tmp/note 2> /dev/null | wc -l"
    print(ssh(lab, "h1", look), ssh(lab, "h2", look))
    print(os.path.exists(os.path.expanduser("~/note")))
    lab.cut("h2"); print(ssh(lab, "h2", "hostname").split(": ")[-1]); lab.heal("h2")
    lab.block_port("h2", 22); print(ssh(lab, "h2", "hostname").split(": ")[-1]); lab.heal("h2")
    lab.delay("h2", 10); lab.loss("h2", 1); lab.slow("h2", rate="100mbit"); print(ssh(lab, "h2", "hostname"))
    lab.heal("h2")
    lab.fill_disk("h2"); print(ssh(lab, "h2", "head -c 20000 /dev/zero > ~/more").split(": ")[-1])
    ssh(lab, "h2", "setsid sleep 1000 > /dev/null 2>&1 &")
    until(lambda: [command for _, command in lab.processes("h2")] == ["sleep 1000"])
    print([command for _, command in lab.processes("h2")])
    lab.power_off("h2"); lab.reboot("h2"); print(lab.processes("h2"), ssh(lab, "h2", "hostname"))
    assert lab.limits[2].startswith("freeze and slow --cpu")
"""
    ).splitlines()
    assert said == [
        "userns | the hosts run in a user namespace (you are not root)",
        "10.77.0.2 h2 True",
        "2 0",
        "False",
        said[4],
        "Connection refused",
        "h2",
        "No space left on device",
        "['sleep 1000']",
        "[] h2",
    ]
    assert said[4] in ("Connection timed out", "No route to host")


@pytest.mark.skipif(
    None in [shutil.which(program, path=SYSTEM_PATH) for program in ("mpirun.openmpi", "mpiexec.hydra")],
    reason="apt-get install openmpi-bin mpich",
)
def test_hosts_in_a_user_namespace_have_mpi_and_gpus_but_no_slurm_or_podman(as_user: RunAsUser) -> None:
    said = as_user(
        COMMON
        + """
with Lab(2, mpi=True, gpus={"h2": 2}) as lab:
    print(ssh(lab, "h2", "stat -c %F /dev/nvidia*").splitlines(), ssh(lab, "h1", "ls -d /dev/nvidia*")[:3])
    print(sorted(ssh(lab, "h1", "mpirun -H h1,h2 hostname").split()))
    lab.reboot("h2"); print(ssh(lab, "h2", "ls /dev/nvidia*").split())
print(refused(lambda: Lab(2, slurm=True)))
print(refused(lambda: Lab(2, podman=True)))
"""
    ).splitlines()
    assert said == [
        "['character special file', 'character special file'] ls:",
        "['h1', 'h2']",
        "['/dev/nvidia0', '/dev/nvidia1']",
        "Slurm needs a lab started as root",
        "podman needs a lab started as root",
    ]


def test_where_namespaces_are_forbidden_the_hosts_are_loopback_addresses(as_user: RunAsUser) -> None:
    said = as_user(
        COMMON
        + """
with Lab(3, kind="loopback") as lab, Lab(2, kind="loopback") as other:
    print(lab.address("h1"), lab.address("h3"), ssh(lab, "h3", "echo $SSH_CONNECTION").split()[2], len(lab.limits))
    ssh(lab, "h2", "setsid sh -c 'trap \\"\\" TERM HUP; sleep 1000; :' > /dev/null 2>&1 &")
    started = lab.popen("h2", ["sleep", "2000"])
    sleeping = lambda: sorted(command.split()[-1] for _, command in lab.processes("h2") if command.startswith("sleep"))
    until(lambda: len(sleeping()) == 2)
    print(sleeping())
    print(lab.processes("h1"), other.processes("h2"))
    lab.crash("h2")
    print(started.wait(30), lab.processes("h2"), lab.status()[1].state, ssh(lab, "h2", "hostname").split(": ")[-1])
    print(ssh(other, "h2", "echo other"))
    lab.reboot("h2"); print(ssh(lab, "h2", "echo back"))
    print(refused(lab.cut, "h2"))
    print(refused(lab.power_off, "h2") != "done", refused(lab.freeze, "h2") != "done")
"""
    ).splitlines()
    assert said == [
        "127.0.0.2 127.0.0.4 127.0.0.4 3",
        "['1000', '2000']",
        "[] []",
        "-9 [] off Connection refused",
        "other",
        "back",
        "this lab does not support `cut`: its hosts are only loopback addresses",
        "True True",
    ]


def test_a_loopback_lab_is_gone_when_its_owner_is_killed(as_user: RunAsUser) -> None:
    said = as_user(
        COMMON
        + """
code = '''
import os, time
from muster.lab import Lab
lab = Lab(2, kind="loopback")
lab.start()
lab.popen("h1", ["sleep", "3000"])
print(lab._site.folder, flush=True)
os.kill(os.getpid(), 9)
'''
owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
folder = owner.stdout.readline().strip()
owner.wait(30)

def traces():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = open(f"/proc/{pid}/cmdline").read() + open(f"/proc/{pid}/environ").read()
        except OSError:
            continue
        if os.path.basename(folder) in text:
            found.append(text)
    return found

until(lambda: not (os.path.exists(folder) or traces()))
print(os.path.exists(folder), traces())
"""
    )
    assert said == "False []\n"

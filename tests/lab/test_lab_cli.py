"""`muster lab` as a user types it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare import BIN
from waiting import patience, wait_until

from muster.lab.system_programs import SYSTEM_PATH

pytestmark = pytest.mark.lab


class Terminal:
    """Runs `muster lab` commands with a state folder of their own."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def __call__(
        self, *words: str, stdin: str = "", cwd: Path | None = None, timeout: float = 90
    ) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "muster", "lab", *words]
        return self.run(argv, stdin=stdin, cwd=cwd, timeout=timeout)

    def muster(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run any other command of Muster."""
        return self.run([sys.executable, "-m", "muster", *words], cwd=cwd)

    def run(
        self, argv: list[str], *, stdin: str = "", cwd: Path | None = None, timeout: float = 90
    ) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "XDG_STATE_HOME": str(self.state)}
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, env=env, cwd=cwd)


@pytest.fixture
def muster_lab(tmp_path: Path) -> Iterator[Terminal]:
    # Longer than a socket's address may be, as some people's home folders are.
    terminal = Terminal(tmp_path / ("long" * 30))
    yield terminal
    terminal("down")


def hosts_of(muster_lab: Terminal) -> dict[str, dict[str, object]]:
    status = json.loads(muster_lab("status", "--json").stdout)
    return {host["name"]: host for host in status["hosts"]}


def test_a_lab_stays_up_between_commands_until_it_is_taken_down(muster_lab: Terminal, tmp_path: Path) -> None:
    up = muster_lab("up", "2", "--disk", "64m", "--bind", str(tmp_path))
    assert up.returncode == 0, up.stderr
    assert "2 hosts are up: h1 to h2" in up.stderr
    assert "muster lab ssh h1" in up.stderr
    assert muster_lab("ssh", "h2", "echo", "over ssh").stdout == "over ssh\n"

    again = muster_lab("up", "2")
    assert again.returncode == 125
    assert again.stderr == "error: a lab is already running\n\nhint: stop it: muster lab down\n"

    inside = muster_lab("exec", "h1", "sh", "-c", "cat; pwd; exit 7", stdin="typed\n", cwd=tmp_path)
    assert (inside.stdout, inside.returncode) == (f"typed\n{tmp_path}\n", 7)

    unknown = muster_lab("crash", "h3")
    assert unknown.returncode == 125
    assert unknown.stderr == "error: unknown host `h3`\n\nhint: the hosts are h1 to h2\n"

    assert muster_lab("crash", "h2").stderr == "h2 is off\n"
    off = muster_lab("exec", "h2", "true")
    assert off.stderr == "error: h2 is off\n\nhint: muster lab reboot h2\n"
    assert muster_lab("reboot", "h2").stderr == "h2 is up\n"
    assert muster_lab("status").stdout.splitlines()[2].split()[0:1] == ["h2"]

    assert muster_lab("down").stderr == "the lab is down\n"
    assert muster_lab("status").returncode == 1


def test_a_shell_over_ssh_finds_muster_and_starts_in_the_working_directory(
    muster_lab: Terminal, tmp_path: Path
) -> None:
    assert muster_lab("up", "1", "--bind", str(tmp_path)).returncode == 0
    shell = muster_lab("ssh", "h1", stdin="pwd; command -v muster; exit 3\n", cwd=tmp_path)
    assert (shell.stdout, shell.returncode) == (f"{tmp_path}\n{shutil.which('muster', path=BIN)}\n", 3), shell.stderr
    command = muster_lab("ssh", "h1", "echo 'a  b'; pwd; muster --version", cwd=tmp_path)
    assert command.stdout.splitlines()[:2] == ["a  b", str(tmp_path)], command.stderr
    assert command.stdout.splitlines()[2].startswith("muster ")


@pytest.mark.skipif(os.getuid() != 0, reason="loopback hosts, which other users may get, do not know each other")
def test_a_job_on_the_hosts_of_a_lab_starts_on_one_of_them_and_its_logs_stay(
    muster_lab: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import socket\nprint('on', socket.gethostname())\n")
    up = muster_lab("up", "2", "--bind", str(tmp_path))
    first_step = up.stderr.partition("next steps:\n")[2].splitlines()[0]
    assert "muster lab exec h1 muster run -H h1,h2 train.py  " in first_step

    words = ["run", "--no-zygote", "-H", "h1:1,h2:1", "train.py"]
    works = f"muster lab exec h1 muster {' '.join(words)}"
    outside = muster_lab.muster(*words, cwd=tmp_path)
    assert outside.returncode == 125
    assert outside.stderr.endswith(f"hint: this name exists only inside your lab; run the command there: `{works}`\n")
    checked = muster_lab.muster("check", "-H", "h1,h2", cwd=tmp_path)
    assert "`muster lab exec h1 muster check -H h1,h2`" in checked.stdout, checked.stderr
    unknown = muster_lab.muster("run", "--no-zygote", "-H", "h3:1", "train.py", cwd=tmp_path)
    assert "hint: check the spelling" in unknown.stderr

    inside = muster_lab(*works.split()[2:], cwd=tmp_path)
    assert inside.returncode == 0, inside.stderr
    assert muster_lab("down").returncode == 0
    assert sorted(muster_lab.muster("logs", "last").stdout.splitlines()) == ["[h1 0] on h1", "[h2 1] on h2"]
    assert "done" in muster_lab.muster("ps").stdout
    assert "hint: check the spelling" in muster_lab.muster(*words, cwd=tmp_path).stderr


@pytest.mark.skipif(os.getuid() != 0, reason="loopback hosts, which other users may get, are this machine")
def test_a_job_inside_a_lab_is_stopped_from_outside_and_has_died_without_the_lab(
    muster_lab: Terminal, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "wait.py").write_text("import time\ntime.sleep(600)\n")
    muster_lab.state = tmp_path_factory.mktemp("s")  # short, so that the job's socket fits into the job directory
    assert muster_lab("up", "1", "--bind", str(tmp_path)).returncode == 0
    detach = ["exec", "h1", "muster", "run", "--detach", "--no-zygote", "--nproc", "1", "wait.py"]
    jobs = [muster_lab(*detach, cwd=tmp_path).stdout.strip() for _ in range(2)]
    stop = muster_lab.muster("stop", jobs[0])
    assert stop.returncode == 0, stop.stderr
    assert f"{jobs[1]}  running" in muster_lab.muster("ps").stdout
    assert muster_lab("down").returncode == 0
    assert f"{jobs[1]}  controller died" in muster_lab.muster("ps").stdout


def test_ctrl_c_ends_the_command_inside_and_is_its_exit_code(muster_lab: Terminal) -> None:
    assert muster_lab("up", "1").returncode == 0
    # Python code in between, because a test process with threads should not fork.
    drive = """
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    # Python, not sh: dash loses a Ctrl-C that comes while it starts its next command.
    command = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)"]
    os.execv(sys.executable, [sys.executable, "-m", "muster", "lab", "exec", "h1", *command])
seen = b""
while b"ready" not in seen:
    seen += os.read(terminal, 1000)
os.write(terminal, b"\x03")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    env = {**os.environ, "XDG_STATE_HOME": str(muster_lab.state)}
    done = subprocess.run([sys.executable, "-c", drive], capture_output=True, text=True, timeout=patience(60), env=env)
    assert done.stdout == "130\n", done.stderr
    wait_until("the command's end", lambda: "time.sleep(600)" not in muster_lab("exec", "h1", "ps", "axww").stdout)


@pytest.mark.skipif(os.getuid() != 0, reason="these faults need root")
def test_every_fault_is_a_verb(muster_lab: Terminal) -> None:
    assert muster_lab("up", "2").returncode == 0
    for words in (
        ["cut", "h1", "h2"],
        ["loss", "h2", "5"],
        ["delay", "h2", "1"],
        ["slow", "h2", "--rate", "100mbit", "--cpu", "0.5"],
        ["block-port", "h2", "80", "--drop", "--out"],
        ["fill-disk", "h2"],
    ):
        done = muster_lab(*words)
        assert done.returncode == 0, done.stderr
    assert hosts_of(muster_lab)["h1"]["faults"] == ["cut"]
    assert hosts_of(muster_lab)["h2"]["faults"] == [
        "cut",
        "loss 5%",
        "rate 100mbit",
        "delay 1 ms",
        "port 80 out drop",
        "cpu 0.5",
        "disk full",
    ]
    assert muster_lab("heal", "h1", "h2").stderr == "h1 is up\nh2 is up\n"
    assert muster_lab("freeze", "h2").stderr == "h2 is frozen\n"
    assert muster_lab("thaw", "h2").stderr == "h2 is up\n"
    assert muster_lab("power-off", "h2").stderr == "h2 is off\n"


@pytest.mark.skipif(os.getuid() != 0, reason="Slurm and podman need a lab started as root")
@pytest.mark.skipif(
    None
    in [
        shutil.which(program, path=SYSTEM_PATH)
        for program in ("slurmctld", "podman", "mpirun.openmpi", "mpiexec.hydra")
    ],
    reason="apt-get install slurmctld slurmd slurm-client munge podman crun openmpi-bin mpich",
)
def test_a_lab_with_everything_says_how_to_try_it_and_that_works(muster_lab: Terminal) -> None:
    up = muster_lab("up", "2", "--slurm", "--mpi", "--podman", "--gpus", "2")
    assert up.returncode == 0, up.stderr
    tries = [line.split("  ")[1].split()[2:] for line in up.stderr.partition("next steps:\n")[2].splitlines()]
    outputs = {words[2]: muster_lab(*words).stdout for words in tries if len(words) > 2 and words[0] == "ssh"}
    assert sorted(outputs["srun"].split()) == ["h1", "h2"]
    assert sorted(outputs["mpirun"].split()) == ["h1", "h2"]
    assert "localhost/muster-lab" in outputs["podman"]
    assert muster_lab("exec", "h2", "sh", "-c", "ls /dev/nvidia*").stdout == "/dev/nvidia0\n/dev/nvidia1\n"
    assert muster_lab("reboot", "h1").returncode == 0
    assert sorted(muster_lab("ssh", "h2", "srun", "-N2", "hostname").stdout.split()) == ["h1", "h2"]


def test_a_killed_keeper_leaves_no_lab(muster_lab: Terminal) -> None:
    assert muster_lab("up", "2").returncode == 0
    status = json.loads(muster_lab("status", "--json").stdout)
    folder = Path(status["ssh"][-1]).parent
    assert folder.is_dir()
    keeper = os.pidfd_open(status["keeper"])
    try:
        os.kill(status["keeper"], signal.SIGKILL)
        assert select.select([keeper], [], [], 30)[0], "the keeper does not die"
    finally:
        os.close(keeper)
    assert muster_lab("status").stdout.startswith("no lab is running")
    wait_until(f"{folder} to go", lambda: not folder.exists())
    assert muster_lab("up", "1").returncode == 0, "the dead keeper must not be in the way"

"""Containers: the command line of each program, made by the real script in several shells, and its end."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from container_host import AGENT, IMAGE, INSTALLED, LOGIN, Host, box, command, options, started
from waiting import ending, wait_until

from muster.cli.run import main as muster_run
from muster.engines.container.container import (
    PROGRAMS,
    Container,
    code_reason,
    container_reason,
    explain_container_failure,
    host_in,
    pull_in,
    script,
)
from muster.engines.mpi.engine import MpiEngine, mpirun_command
from muster.engines.mpi.local_mpi import Mpi
from muster.hosts import parse_hosts
from muster.shared.machine import gpu_count

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="containers run on Linux hosts"),
]

# --- the command lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", INSTALLED)
@pytest.mark.parametrize("program", ["podman", "docker"])
def test_podman_and_docker_give_the_agent_what_the_host_has(tmp_path: Path, program: str, shell: tuple[str, ...]):
    host = Host(tmp_path, program)
    done = host.run(box(host.cwd), shell, stdin="the agent\n")
    given = options(host.argv())
    for option in [
        ("--rm", ""),
        ("--interactive", ""),
        ("--network", "host"),
        ("--uts", "host"),
        ("--ipc", "host"),
        ("--log-driver", "none"),
        ("--entrypoint", ""),
        ("--mount", f"type=bind,src={host.cwd},dst={host.cwd}"),
        ("--workdir", str(host.cwd)),
    ]:
        assert option in given
    assert dict(given)["--name"].startswith("muster-job-1-")
    assert tuple(host.argv()[-len(AGENT) - 1 :]) == (IMAGE, *AGENT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the agent\n", "")


@pytest.mark.parametrize("shell", INSTALLED)
def test_apptainer_takes_no_variable_of_the_host_but_those_it_is_given(tmp_path: Path, shell: tuple[str, ...]):
    host = Host(tmp_path, "apptainer")
    ours = {"SLURM_JOB_ID": "47", "PMI_RANK": "1", "MUSTER_DIAL": '{"a": "b,c"}', "OMPI_X": "two\nlines"}
    done = host.run(box(host.cwd), shell, stdin="the agent\n", PYTHONPATH="/leak", **ours)
    assert host.argv() == [
        *("exec", "--cleanenv", "--pid", "--pwd", str(host.cwd)),
        *("--mount", f"type=bind,src={host.cwd},dst={host.cwd}", IMAGE, *AGENT),
    ]
    inside = {name[13:]: value for name, value in host.inside().items() if name.startswith("APPTAINERENV_")}
    assert inside == {**ours, "PYTHONNOUSERSITE": "1"}
    assert (done.returncode, done.stdout) == (0, "the agent\n")


@pytest.mark.parametrize("shell", INSTALLED)
def test_only_variables_of_schedulers_and_launchers_come_along(tmp_path: Path, shell: tuple[str, ...]):
    host = Host(tmp_path, "podman")
    ours = {
        "MUSTER_DIAL": "{}",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "OMP_NUM_THREADS": "4",
        "NCPUS": "4",
        "SLURMD_NODENAME": "n1",
        "SLURM_PROCID": "1",
        "PBS_JOBID": "2",
        "OMPI_COMM_WORLD_RANK": "3",
        "PMIX_RANK": "4",
        "PMI_RANK": "5",
        "SLURM_LINES": "one\nPBS_FAKE=two",
    }
    others = {"LD_LIBRARY_PATH": "/leak", "PYTHONPATH": "/leak", "MY_SLURM_X": "1", "WORDS": "a\nPMI_X=*"}
    given = started(host, box(host.cwd), shell, **ours, **others)
    assert {value for option, value in given if option == "--env"} == set(ours)


@pytest.mark.parametrize("shell", INSTALLED)
def test_any_folder_name_can_be_mounted(tmp_path: Path, shell: tuple[str, ...]):
    host = Host(tmp_path, "podman")
    for name in ("a b", "a:b", "back\\slash \\n", "it's $HOME `x`", "-v"):
        folder = host.cwd / name
        folder.mkdir()
        assert ("--mount", f"type=bind,src={folder},dst={folder}") in started(host, box(folder), shell)
    odd = host.cwd / 'a,"b"'
    odd.mkdir()
    quoted = str(odd).replace('"', '""')
    assert ("--mount", f'type=bind,"src={quoted}","dst={quoted}"') in started(host, box(odd), shell)


@pytest.mark.parametrize("shell", INSTALLED)
def test_where_the_code_is_sent_the_jobs_folder_on_the_host_takes_it(tmp_path: Path, shell: tuple[str, ...]):
    host = Host(tmp_path, "podman")
    for env, state in [({}, host.home / ".local/state"), ({"XDG_STATE_HOME": f"{tmp_path}/s t"}, tmp_path / "s t")]:
        given = started(host, box(), shell, **env)
        folder = state / "muster/jobs/job-1"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert ("--mount", f"type=bind,src={folder},dst={folder}") in given
        assert ("--env", f"XDG_STATE_HOME={state}") in given
        assert "--workdir" not in dict(given)


def test_the_home_of_a_user_without_one_in_the_environment_is_found(tmp_path: Path):
    host = Host(tmp_path, "podman")
    started(host, box(host.cwd), HOME="")
    assert host.inside()["HOME"] == pwd.getpwuid(os.getuid()).pw_dir


def test_a_job_folder_that_the_host_shares_is_mounted_for_reading(tmp_path: Path):
    host = Host(tmp_path, "podman")
    folder = host.home / ".local/state/muster/jobs/job-1"
    folder.mkdir(parents=True)
    mount = f"type=bind,src={folder},dst={folder}"
    shared = Container(image=IMAGE, cwd=str(host.cwd), folder=str(folder))
    assert ("--mount", f"{mount},ro") in started(host, shared)
    written = started(host, Container(image=IMAGE, folder=str(folder)))
    assert [value for option, value in written if option == "--mount"] == [mount], "once, where the code goes there"


def test_ranks_of_mpi_on_one_host_see_each_other_from_container_to_container(tmp_path: Path):
    host = Host(tmp_path, "podman")
    given = started(host, box(host.cwd, shares_processes=True), TMPDIR=str(host.home))
    assert ("--pid", "host") in given
    assert ("--cap-add", "SYS_PTRACE") in given
    assert ("--mount", f"type=bind,src={host.home},dst={host.home}") in given
    assert ("--env", "TMPDIR") in given


def test_the_users_own_options_come_last_and_ours_do_not_contradict_them(tmp_path: Path):
    host = Host(tmp_path, "podman", "docker")
    args = ("--ipc", "private", "--user", "app", "--entrypoint", "/init", "--network", "none")
    for program in ("podman", "docker"):
        given = started(host, box(host.cwd, args=args, program=program))
        assert [value for option, value in given if option == "--network"] == ["none"], "two are an error for both"
        assert given[-4:-1] == [("--ipc", "private"), ("--user", "app"), ("--entrypoint", "/init")]


def test_what_ranks_write_belongs_to_the_user_with_every_program(tmp_path: Path):
    host = Host(tmp_path, "docker", "podman")
    (host.bin / "id").unlink()
    (host.bin / "id").write_text(
        "#!/bin/sh\ncase $1 in -un) echo ann ;; -G) echo 1000 27 ;; -u) echo 1000 ;; -g) echo 100 ;; esac\n"
    )
    (host.bin / "id").chmod(0o755)
    docker = started(host, box(host.cwd, program="docker"))
    assert ("--user", "1000:100") in docker, "its daemon is root"
    assert [value for option, value in docker if option == "--group-add"] == ["27", "1000"]
    assert {("--env", "HOME=/tmp"), ("--env", "USER=ann")} < set(docker), "a user the image does not know"
    # Where the program is not root either, root inside is the user outside.
    rootless = started(host, box(host.cwd, program="docker"), FAKE_SECURITY="[name=seccomp name=rootless]")
    podman = started(host, box(host.cwd, program="podman"))
    assert ("--user", "0:0") in rootless
    assert ("--user", "0:0") in podman
    assert ("--annotation", "run.oci.keep_original_groups=1") in podman


def test_what_is_called_docker_and_is_podman_is_used_as_podman(tmp_path: Path):
    host = Host(tmp_path, "docker")
    started(host, box(host.cwd, program="docker"), FAKE_VERSION="podman version 4.3.1")
    assert "info" not in [call[1] for call in host.called()]
    assert host.called()[-1][:2] == ["docker", "run"]


# --- which program --------------------------------------------------------------------------------------------


def test_the_first_program_a_host_has_is_used(tmp_path: Path):
    for number in range(len(PROGRAMS)):
        (tmp_path / str(number)).mkdir()
        host = Host(tmp_path / str(number), *PROGRAMS[number:])
        started(host, box(host.cwd))
        assert host.called()[-1][0] == PROGRAMS[number]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shell", INSTALLED)
def test_a_program_that_is_named_is_used_or_refused_by_its_name(tmp_path: Path, program: str, shell: tuple[str, ...]):
    host = Host(tmp_path, *(other for other in PROGRAMS if other != program))
    done = host.run(box(host.cwd, program=program), shell)
    assert host.called() == [], "no other takes its place"
    error = explain_container_failure("h2", box(program=program), done.returncode, done.stderr)
    assert error.message == f"h2: {program} not found"
    assert "--container" in str(error.hint)


def test_a_host_without_any_program_is_an_error(tmp_path: Path):
    done = Host(tmp_path).run(box(tmp_path))
    error = explain_container_failure("h2", box(), done.returncode, done.stderr)
    assert error.message == "h2: found no podman, docker or apptainer"


# --- pulling --------------------------------------------------------------------------------------------------

MISSING = {"FAKE_MISSING": "1"}


@pytest.mark.parametrize("shell", INSTALLED)
@pytest.mark.parametrize("program", ["podman", "docker"])
def test_an_image_that_is_not_there_is_pulled_first_and_that_is_said(
    tmp_path: Path, program: str, shell: tuple[str, ...]
):
    host = Host(tmp_path, program)
    done = host.run(box(host.cwd), shell, stdin="the agent\n", **MISSING)
    assert (done.returncode, done.stdout) == (0, "the agent\n")
    assert [program, "pull", IMAGE] in host.called()
    first, second = done.stderr.splitlines()
    assert pull_in(first) == (os.uname().nodename.partition(".")[0], IMAGE)
    assert second == "Copying blob 1"


def test_an_image_that_is_there_is_not_pulled(tmp_path: Path):
    host = Host(tmp_path, "podman")
    started(host, box(host.cwd))
    assert [call[1] for call in host.called()] == ["image", "run"]


def test_whether_to_pull_is_left_to_who_speaks_of_it(tmp_path: Path):
    host = Host(tmp_path, "podman")
    started(host, box(host.cwd, args=("--pull=never",)), **MISSING)
    assert [call[1] for call in host.called()] == ["run"]


@pytest.mark.parametrize("shell", INSTALLED)
def test_a_pull_that_fails_ends_it_with_the_programs_reason(tmp_path: Path, shell: tuple[str, ...]):
    host = Host(tmp_path, "podman")
    says = "Error: dial tcp: no such host"
    done = host.run(box(host.cwd), shell, FAKE_PULL_SAYS=f"{says}\n", FAKE_PULL_CODE="125", **MISSING)
    assert done.stdout == ""
    assert [call[1] for call in host.called()] == ["image", "pull"]
    error = explain_container_failure("h2", box(), done.returncode, done.stderr)
    assert error.message == f"h2: image {IMAGE} not found, and podman could not pull it (no such host)"
    reason = code_reason(box(), done.returncode)
    assert reason is not None
    assert reason[0] == f"image {IMAGE} not found, and it could not be pulled"


@pytest.mark.parametrize("shell", INSTALLED)
def test_a_pull_ends_when_who_wanted_it_has_gone(tmp_path: Path, shell: tuple[str, ...]):
    host = Host(tmp_path, "podman")
    # Like sshd: it starts the script, and dies without notifying it.
    sshd = ["sh", "-c", f"{shlex.join(command(shell, box(host.cwd)))} & read -r line"]
    parent = subprocess.Popen(sshd, env=host.env(FAKE_SECONDS="50", **MISSING), stdin=subprocess.PIPE)
    wait_for_call(host, "pull")
    parent.kill()
    parent.communicate()
    wait_until_alone(host)
    assert "run" not in [call[1] for call in host.called()]


def wait_for_call(host: Host, word: str, times: int = 1) -> None:
    wait_until(f"{times} calls of {word}", lambda: [call[1] for call in host.called()].count(word) >= times)


def wait_until_alone(host: Host) -> None:
    """Wait until no process of the script or of its programs lives."""

    def alive() -> list[Path]:
        return [pid for pid in Path("/proc").glob("[0-9]*") if str(host.calls).encode() in environ(pid)]

    wait_until("all to end", lambda: not alive(), said=lambda: str(alive()))


def environ(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def test_one_rank_of_each_host_pulls_for_all_of_them(tmp_path: Path):
    host = Host(tmp_path, "podman")
    shared = box(host.cwd, shares_processes=True)
    second = subprocess.Popen(
        command(("sh",), shared), env=host.env(OMPI_COMM_WORLD_LOCAL_RANK="1", **MISSING), stdin=subprocess.DEVNULL
    )
    with ending(second):
        wait_for_call(host, "image", times=3)
        assert {call[1] for call in host.called()} == {"image"}, "it waits until another has the image"
        second.kill()
    host.run(shared, MPI_LOCALRANKID="0", **MISSING)
    assert ["podman", "pull", IMAGE] in host.called()


# --- the end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", INSTALLED)
@pytest.mark.parametrize("code", [0, 7, 119, 137])
def test_the_exit_code_is_that_of_the_agent(tmp_path: Path, code: int, shell: tuple[str, ...]):
    host = Host(tmp_path, "podman")
    done = host.run(box(host.cwd), shell, FAKE_CODE=str(code))
    assert done.returncode == code
    assert done.stderr == ""


def test_after_a_good_end_nothing_waits_and_nothing_is_removed(tmp_path: Path):
    host = Host(tmp_path, "podman")
    started(host, box(host.cwd))
    wait_until_alone(host)
    assert [call[1] for call in host.called()] == ["image", "run"]


@pytest.mark.parametrize("code", [125, 126, 127])
def test_a_container_that_does_not_start_is_reported_with_its_host(tmp_path: Path, code: int):
    host = Host(tmp_path, "podman")
    done = host.run(box(host.cwd), FAKE_CODE=str(code), FAKE_SAYS="Error: something new\n")
    assert done.returncode == code
    assert host_in(done.stderr) == os.uname().nodename.partition(".")[0]
    assert container_reason(box(), done.stderr) == (
        f"podman could not start {IMAGE}: Error: something new",
        f"run it by hand there: `podman run --rm {IMAGE} true`",
    )
    assert code_reason(box(), code)


@pytest.mark.parametrize("shell", INSTALLED)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("program", ["podman", "docker"])
def test_a_container_is_removed_when_a_scheduler_ends_its_program(
    tmp_path: Path, shell: tuple[str, ...], number: signal.Signals, program: str
):
    host = Host(tmp_path, program)
    task = subprocess.Popen(
        command(shell, box(host.cwd)), env=host.env(), stdin=subprocess.PIPE, start_new_session=True
    )
    wait_for_call(host, "run")
    os.killpg(task.pid, number)
    assert task.wait(30) in (128 + number, -number)
    wait_for_call(host, "rm")
    task.communicate()
    wait_until_alone(host)
    _image, run, rm = [call for call in host.called() if call[1] in ("image", "run", "rm")][:3]
    now = ["--time=0"] if program == "podman" else []
    assert rm == [program, "rm", "--force", *now, run[run.index("--name") + 1]]


# --- on the way there -----------------------------------------------------------------------------------------


def test_the_script_crosses_every_login_shell():
    text = script("container") + script("container_keeper")
    assert "\n" not in text, "csh takes no newline in quotes"
    assert "'" not in text
    assert "\\\\" not in text, "fish reads two backslashes as one"
    assert all(after in " =" for after in (text[at + 1] for at, char in enumerate(text) if char == "!")), (
        "csh's history"
    )


@pytest.mark.parametrize("login", LOGIN)
def test_a_login_shell_gives_the_host_what_was_meant(tmp_path: Path, login: tuple[str]):
    host = Host(tmp_path, "podman")
    folder = host.cwd / 'it\'s a "folder"'
    folder.mkdir()
    line = f"exec {shlex.join(box(folder, args=('-v', '/a b:/c')).run(AGENT))}"
    shell = str(shutil.which(login[0]))
    done = subprocess.run([shell, "-c", line], env=host.env(), input="", capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert tuple(host.argv()[-len(AGENT) - 3 :]) == ("-v", "/a b:/c", IMAGE, *AGENT)


def test_a_dry_run_shows_what_is_started_without_the_text_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert muster_run(["--dry-run", "-H", "a:1,b:1", "--image", "box:1", "--container", "docker", "train.py"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "(starts a container)" in last
    assert f"docker box:1 {tmp_path} " in last
    assert len(last) < 1000


@pytest.mark.parametrize("sign", ["run/.containerenv", ".dockerenv"])
def test_a_container_has_the_gpus_it_was_given_not_all_of_its_host(tmp_path: Path, sign: str):
    for number in range(4):
        (tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0").mkdir(parents=True)
    for name in ("dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert gpu_count({}, f"{tmp_path}/") == 4, "the driver of a host makes its devices when they are first used"
    (tmp_path / sign).parent.mkdir(exist_ok=True)
    (tmp_path / sign).touch()
    assert gpu_count({}, f"{tmp_path}/") == 1
    assert gpu_count({"CUDA_VISIBLE_DEVICES": "0,1"}, f"{tmp_path}/") == 2


def test_ranks_of_mpich_talk_to_it_over_a_port_because_no_descriptor_gets_into_a_container():
    mpich = Mpi(program="mpirun", flavour="mpich", version=0)
    hosts = parse_hosts("a:2,b:1")
    command = mpirun_command(mpich, hosts, python=None, box=box("/work"))
    assert command.argv[:7] == ("mpirun", "-np", "3", "-hosts", "a:2,b:1", "-pmi-port", "/bin/sh")
    assert "PMI_ID" in MpiEngine.key_from, "there is no PMI_RANK then"
    assert "-pmi-port" not in mpirun_command(mpich, hosts, python=None).argv

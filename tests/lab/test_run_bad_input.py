"""Bad input: one sentence that names the place, a hint with what to type, nothing started, nothing left running."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_promises import check_refusal as check
from launching import Done, HostJob, alive, run_here, run_in
from waiting import ending, patience, wait_until

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

RAN = "this script ran"


@pytest.fixture(autouse=True)
def script(shared: Path) -> None:
    (shared / "train.py").write_text(f"print({RAN!r})\n")


@pytest.fixture
def on_hosts(cluster: Lab, shared: Path) -> Iterator[Callable[..., Done]]:
    """`muster run` inside h1; afterwards no host has a process of it."""

    def run(*argv: str, **env: str) -> Done:
        return run_in(cluster, "h1", shared, *argv, **env)

    yield run
    # Where no job came about, a host that was just being called sees a moment later that nobody is there any more.
    wait_until(
        "every process to end",
        lambda: not alive(cluster, cluster.names),
        20,
        lambda: str(alive(cluster, cluster.names)),
    )


@pytest.fixture
def changed(cluster: Lab) -> Iterator[Callable[[str, str, str], None]]:
    """Run a command in a host now, and another after the test that takes it back."""
    undo: list[tuple[str, str]] = []

    def change(host: str, now: str, later: str) -> None:
        undo.append((host, later))
        in_host(cluster, host, now)

    yield change
    for host, later in undo:
        in_host(cluster, host, later)


def in_host(lab: Lab, host: str, command: str) -> str:
    done = lab.run(host, ["sh", "-ec", command], timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- hosts ----------------------------------------------------------------------------------------------------


def test_an_unknown_host_is_named(on_hosts: Callable[..., Done]) -> None:
    check(on_hosts("-H", "h2:1,gpu99:1", "train.py"), 125, "^gpu99: ssh could not resolve this host name", "spelling")


def test_a_host_that_is_off_is_named(on_hosts: Callable[..., Done], cluster: Lab) -> None:
    cluster.crash("h3")
    try:
        done = on_hosts("-H", "h2:1,h3:1", "train.py")
    finally:
        cluster.reboot("h3")
    check(done, 125, "^h3: (no route to this host|no answer within)", "ssh h3 true")


def test_a_host_that_refuses_the_key_is_named(
    on_hosts: Callable[..., Done], changed: Callable[[str, str, str], None]
) -> None:
    keys = "/run/muster-lab/authorized_keys"
    changed("h3", f"mv {keys} {keys}.away; touch {keys}", f"mv {keys}.away {keys}")
    check(
        on_hosts("-H", "h2:1,h3:1", "train.py"),
        125,
        r"^h3: ssh login denied \(.*Permission denied",
        "muster setup ssh -H h3",
    )


def test_a_changed_host_key_is_refused(on_hosts: Callable[..., Done], changed: Callable[[str, str, str], None]) -> None:
    known = "~/.ssh/known_hosts"
    changed(
        "h1",
        f"cp {known} /tmp/known; rm -f /tmp/other*; ssh-keygen -qt ed25519 -N '' -f /tmp/other;"
        f"grep -v '^h3,' /tmp/known > {known}; echo h3 $(cut -d' ' -f1,2 /tmp/other.pub) >> {known}",
        f"cp /tmp/known {known}",
    )
    check(
        on_hosts("-H", "h2:1,h3:1", "train.py"),
        125,
        "^h3: its host key has changed since you accepted",
        "ssh-keygen -R h3",
    )


def test_a_host_key_that_was_never_accepted_is_refused(
    on_hosts: Callable[..., Done], changed: Callable[[str, str, str], None]
) -> None:
    known = "~/.ssh/known_hosts"
    changed("h1", f"cp {known} /tmp/known; grep -v '^h3,' /tmp/known > {known}", f"cp /tmp/known {known}")
    check(
        on_hosts("-H", "h2:1,h3:1", "train.py"),
        125,
        "^h3: you have not accepted its host key yet",
        "`muster setup ssh -H h3`",
    )


def test_a_host_where_nothing_listens_for_ssh_is_named(on_hosts: Callable[..., Done], cluster: Lab) -> None:
    cluster.block_port("h3", 22)
    try:
        done = on_hosts("-H", "h2:1,h3:1", "train.py")
    finally:
        cluster.heal("h3")
    check(done, 125, "^h3: no ssh server is listening", "ssh h3 true")


def test_two_bad_hosts_are_both_named_with_their_hints(on_hosts: Callable[..., Done]) -> None:
    done = on_hosts("-H", "h2:1,gpu98:1,gpu99:1", "train.py")
    assert done.code == 125
    assert re.search(r"^error: 2 of 3 hosts are not usable\n  gpu98: .*\n  gpu99: ", done.err, re.MULTILINE), done.said
    assert "hint: " in done.err
    assert RAN not in done.out


@pytest.mark.parametrize("hosts", ["", " ", ",", "h2:0"])
def test_an_empty_list_of_hosts_is_refused(on_hosts: Callable[..., Done], hosts: str) -> None:
    check(on_hosts("-H", hosts, "train.py"), 2, "", "")


def test_a_host_list_with_a_typing_error_points_at_it(on_hosts: Callable[..., Done]) -> None:
    done = on_hosts("-H", "gpu[01-:8", "train.py")
    assert done.code == 2, done.said
    assert "^" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, r"nowhere\.txt"),
        ("", r"hosts\.txt"),
        ("# only a comment\n\n", r"hosts\.txt"),
        ("h2 slots=many\n", r"hosts\.txt:1"),
        (b"\x80\x00\xff", r"hosts\.txt"),
    ],
    ids=["missing", "empty", "comments", "bad", "binary"],
)
def test_a_hostfile_that_cannot_be_used_is_refused(tmp_path: Path, content: str | bytes | None, error: str) -> None:
    (tmp_path / "train.py").write_text("")
    if content is not None:
        (tmp_path / "hosts.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    done = run_here(tmp_path, "--hostfile", "nowhere.txt" if content is None else "hosts.txt", "train.py")
    assert done.code == 2, done.said
    assert re.search(rf"^error: .*{error}", done.err, re.MULTILINE), done.said
    assert "hint: " in done.err
    assert "Traceback" not in done.err


def test_a_hostfile_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    check(run_here(tmp_path, "--hostfile", str(tmp_path), "train.py"), 2, "hostfile", "")


def test_a_missing_ssh_client_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = run_here(tmp_path, "-H", "far:1", "train.py", PATH=str(tmp_path))
    check(done, 125, "^far: could not start `ssh`", "install the OpenSSH client")


# --- Python and torch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", ["/nope/python", "nope-python", "~/nope"])
def test_a_python_that_is_not_there_is_reported_with_its_host(on_hosts: Callable[..., Done], python: str) -> None:
    done = on_hosts("-H", "h2:1", "--python", python, "train.py")
    check(done, 125, "^h2: could not start Python .*nope", "--python PATH")


def test_a_python_that_cannot_be_run_is_reported_with_its_host(on_hosts: Callable[..., Done]) -> None:
    done = on_hosts("-H", "h2:1", "--python", "/etc/passwd", "train.py")
    check(done, 125, "^h2: .*/etc/passwd", "--python PATH")


def test_a_program_that_is_not_python_is_refused(on_hosts: Callable[..., Done]) -> None:
    done = on_hosts("-H", "h2:1", "--python", "/bin/true", "train.py")
    assert done.code == 125, done.said
    assert "error: h2: " in done.err
    assert "Traceback" not in done.err


def test_a_local_python_that_is_not_there_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = run_here(tmp_path, "--nproc", "1", "--python", "/nope/python", "train.py")
    check(done, 125, "/nope/python", "--python PATH")


def python_without_torch() -> str:
    for candidate in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(candidate):
            done = subprocess.run([candidate, "-c", "import torch"], capture_output=True, timeout=patience(60))
            if done.returncode:
                return candidate
    pytest.skip("every Python of this machine has torch")


def test_a_host_without_torch_is_named(on_hosts: Callable[..., Done]) -> None:
    python = python_without_torch()
    done = on_hosts("-H", "h2:1", "--python", python, "train.py")
    check(done, 125, f"^h2: {re.escape(os.path.realpath(python))[:12]}.* has no torch", "--python PATH")
    assert "was killed" not in done.err, done.said


def test_a_host_with_another_version_of_torch_is_named(
    on_hosts: Callable[..., Done], changed: Callable[[str, str, str], None]
) -> None:
    wrapper = "mkdir -p /tmp/old/torch; printf '#!/bin/sh\\n{} exec {} \"$@\"\\n' > /tmp/py; chmod +x /tmp/py"
    changed("h2", wrapper.format("", sys.executable), "rm -r /tmp/py /tmp/old")
    changed(
        "h3",
        wrapper.format("PYTHONPATH=/tmp/old", sys.executable)
        + "; echo \"__version__ = '2.5.1'\" > /tmp/old/torch/version.py",
        "rm -r /tmp/py /tmp/old",
    )
    done = on_hosts("-H", "h2:1,h3:1", "--python", "/tmp/py", "train.py")
    check(done, 125, r"different versions of torch: h2 has \d.*, h3 has 2\.5\.1", "same version everywhere")


# --- script ---------------------------------------------------------------------------------------------------


def test_the_error_for_a_missing_script_suggests_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    check(run_here(tmp_path, "trian.py"), 2, r"^script trian\.py not found", r"did you mean `train\.py`\?")


def test_a_folder_instead_of_a_script_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    check(run_here(tmp_path, "pkg"), 2, "pkg is a directory", r"\.py")


def test_a_command_line_without_a_script_is_refused(tmp_path: Path) -> None:
    check(run_here(tmp_path, "--nproc", "2"), 2, "no script to run", "muster run")


def test_a_module_that_does_not_exist_is_reported_once_before_ranks_start(tmp_path: Path) -> None:
    done = run_here(tmp_path, "--nproc", "2", "-m", "no_such_module.train")
    check(done, 1, "^No module named 'no_such_module' on ", "--python PATH")
    assert "importing torch" not in done.err


def test_a_syntax_error_is_reported_once_before_ranks_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint('x'\n")
    done = run_here(tmp_path, "--nproc", "3", "train.py")
    assert done.code == 1, done.said
    assert re.search(
        rf"^error: train\.py has a syntax error; no rank was started\n"
        rf'  File "{tmp_path}/train\.py", line 2\n    print\(.*\n +\^\nSyntaxError: .* was never closed\n',
        done.err,
        re.MULTILINE,
    ), done.said
    assert done.err.count("SyntaxError") == 1, done.said
    assert "importing torch" not in done.err


def test_a_missing_import_is_reported_once_before_ranks_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nimport torch\n\nimport no_such_module.part\n")
    done = run_here(tmp_path, "--nproc", "3", "train.py")
    check(done, 1, r"^train\.py:4: No module named 'no_such_module' on \S+ \(/\S+\); no rank was", "--python PATH")
    assert "importing torch" not in done.err


def test_imports_that_only_the_script_can_judge_are_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_here.py").touch()
    (tmp_path / "paths.py").write_text("import sys\nsys.path.insert(0, 'lib')\n")
    (tmp_path / "train.py").write_text("import paths\nimport only_here\nprint('found')\n")
    assert run_here(tmp_path, "--no-zygote", "--nproc", "1", "train.py").lines(0) == ["found"]
    (tmp_path / "train.py").write_text("import only_here\nprint('found')\n")
    done = run_here(tmp_path, "--no-zygote", "--nproc", "1", "--env", f"PYTHONPATH={tmp_path}/lib", "train.py")
    assert done.lines(0) == ["found"]


# --- GPUs and network -----------------------------------------------------------------------------------------


@pytest.fixture
def gpus(changed: Callable[[str, str, str], None]) -> None:
    """h2 has two GPUs, as far as device files go."""
    changed("h2", "mknod /dev/nvidia0 c 1 3; mknod /dev/nvidia1 c 1 3", "rm -f /dev/nvidia0 /dev/nvidia1")


@pytest.mark.usefixtures("gpus")
def test_more_ranks_than_gpus_are_refused(on_hosts: Callable[..., Done]) -> None:
    check(
        on_hosts("--no-zygote", "-H", "h2:4", "train.py"), 125, "^h2: 4 ranks need 4 GPUs, but the host has 2", "`h2:2`"
    )


@pytest.mark.usefixtures("gpus")
def test_a_gpu_that_is_not_there_is_refused(on_hosts: Callable[..., Done]) -> None:
    check(on_hosts("--no-zygote", "-H", "h2:0,5", "train.py"), 125, "^h2: GPU 5 does not exist", "`h2:2`")


@pytest.mark.usefixtures("gpus")
def test_the_gpus_of_a_host_are_its_ranks_and_a_list_chooses_among_them(
    on_hosts: Callable[..., Done], shared: Path
) -> None:
    names = ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    (shared / "gpus.py").write_text(f"import os; print(*(os.environ.get(name) for name in {names}))")
    assert on_hosts("--no-zygote", "-H", "h2", "gpus.py").lines(1) == ["1 None None"]
    chosen = on_hosts("--no-zygote", "-H", "h2:1,0", "gpus.py")
    assert chosen.lines(0) == ["0 1,0 PCI_BUS_ID"], chosen.said
    assert chosen.lines(1) == ["1 1,0 PCI_BUS_ID"], chosen.said
    cpu = on_hosts("--no-zygote", "-H", "h2:3", "--env", "CUDA_VISIBLE_DEVICES=", "gpus.py")
    assert cpu.lines(2) == ["2  None"], cpu.said


def test_gpus_of_a_host_without_any_are_refused(on_hosts: Callable[..., Done]) -> None:
    check(
        on_hosts("--no-zygote", "-H", "h2:0,1", "train.py"),
        125,
        "^h2: GPUs 0, 1 were requested, but the host has no GPU",
        "CPU",
    )


@contextmanager
def listening(lab: Lab, host: str, port: int) -> Iterator[None]:
    """A program on a host has a port, and has gone afterwards."""
    listen = f"import socket, time; s = socket.create_server(('', {port})); print('on', flush=True); time.sleep(600)"
    with ending(lab.popen(host, [sys.executable, "-c", listen], stdout=subprocess.PIPE, text=True)) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == "on\n"
        yield
    wait_until("the port's owner to be gone", lambda: not alive(lab, (host,)), 20)


def test_a_port_that_is_taken_is_reported_with_its_owner(on_hosts: Callable[..., Done], cluster: Lab) -> None:
    with listening(cluster, "h2", 23456):
        done = on_hosts("--no-zygote", "-H", "h2:1,h3:1", "--master-port", "23456", "train.py")
    check(done, 125, r"^h2: port 23456 .* already in use by pid \d+ \(.*python", "omit --master-port")


def test_a_port_that_is_taken_on_another_host_than_the_first_does_not_matter(
    on_hosts: Callable[..., Done], cluster: Lab
) -> None:
    with listening(cluster, "h3", 23456):
        done = on_hosts("--no-zygote", "-H", "h2:1,h3:1", "--master-port", "23456", "train.py")
    assert done.code == 0, done.said
    assert ":23456" in done.err


def test_an_interface_that_a_host_does_not_have_is_refused(on_hosts: Callable[..., Done]) -> None:
    done = on_hosts("--no-zygote", "-H", "h2:1,h3:1", "--interface", "ib7", "train.py")
    check(done, 2, "--interface ib7: h[23] has no such network interface", "eth0")


def test_a_master_address_that_leads_elsewhere_is_refused(on_hosts: Callable[..., Done], cluster: Lab) -> None:
    done = on_hosts("--no-zygote", "-H", "h2:1,h3:1", "--master-addr", cluster.address("h3"), "train.py")
    check(done, 125, "--master-addr", "omit --master-addr")


def test_a_master_address_by_name_is_as_good_as_a_number(on_hosts: Callable[..., Done], shared: Path) -> None:
    (shared / "where.py").write_text("import os; print(os.environ['MASTER_ADDR'])")
    done = on_hosts("--no-zygote", "-H", "h2:1,h3:1", "--master-addr", "h2", "where.py")
    assert done.code == 0, done.said
    assert done.lines(1) == ["h2"], done.said


# --- options and files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ["--nproc", "0"],
        ["--nproc", "two"],
        ["--nproc-per-node", "xpu"],
        ["--nnodes", "2"],
        ["--node_rank", "1"],
        ["--no-python"],
        ["--grace", "-1"],
        ["--grace", "5x"],
        ["--hang_after", "soon"],
        ["--restarts", "x"],
        ["--master-port", "70000"],
        ["--only-rank", "a"],
        ["--lab", "0"],
        ["--env", "1=2"],
        ["--env", "NOT_SET_ANYWHERE"],
        ["--no-such-option"],
        ["--nprocs", "2"],
        ["-H", "a:1", "--hostfile", "f"],
        ["--no-zygote", "--preload", "numpy"],
        ["--only-rank", "9", "--nproc", "2", "--no-zygote"],
    ],
    ids=" ".join,
)
def test_a_wrong_option_is_a_mistake_of_usage(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "train.py").write_text(f"print({RAN!r})")
    check(run_here(tmp_path, *options, "train.py"), 2, "", "")


def test_a_state_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"print({RAN!r})")
    (tmp_path / "file").write_text("")
    done = run_here(tmp_path, "--no-zygote", "--nproc", "1", "train.py", state=tmp_path / "file")
    check(done, 125, "file", "XDG_STATE_HOME")


def test_code_that_does_not_fit_on_a_hosts_disk_is_reported(
    on_hosts: Callable[..., Done], cluster: Lab, tmp_path: Path
) -> None:
    cluster.fill_disk("h3")
    try:
        done = on_hosts("--no-zygote", "--sync", "-H", "h2:1,h3:1", "train.py")
    finally:
        cluster.heal("h3")
    assert done.code == 125, done.said
    assert re.search(r"^error: h3: could not write the code: .*No space left", done.err, re.MULTILINE), done.said
    assert RAN not in done.out


def test_a_disk_that_is_full_before_the_start_is_reported(on_hosts: Callable[..., Done], cluster: Lab) -> None:
    cluster.fill_disk("h1")
    try:
        done = on_hosts("--no-zygote", "--nproc", "1", "train.py", XDG_STATE_HOME="/tmp/state")
    finally:
        cluster.heal("h1")
    check(done, 125, "(?i)no space left", "XDG_STATE_HOME")


def test_a_disk_that_fills_up_under_the_logs_is_reported_and_does_not_silence_the_job(
    cluster: Lab, shared: Path
) -> None:
    (shared / "much.py").write_text(
        "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('disk is full'): time.sleep(0.05)\n"
        "for n in range(3000): print('line', n, 'x' * 100)\n"
    )
    options = ("--no-zygote", "--nproc", "1", "much.py")
    job = HostJob(cluster, "h1", shared, *options, XDG_STATE_HOME="/tmp/state")
    try:
        wait_until("the rank", lambda: "up" in job.out, 30, lambda: job.err)
        cluster.fill_disk("h1")
        (shared / "disk is full").touch()
        done = job.wait()
    finally:
        job.end()
        cluster.heal("h1")
    assert "Traceback" not in done.err, done.err
    assert done.code == 0, done.err
    assert done.out.count("line") == 3000
    assert "no space left" in done.err.lower()

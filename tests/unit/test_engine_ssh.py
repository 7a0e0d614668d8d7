"""The command line for each host here and over ssh, and what errors of ssh mean."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from muster.engines.engine import StartCommand
from muster.engines.local.engine import is_this_machine, local_command
from muster.engines.ssh.engine import explain_ssh_failure, ssh_command
from muster.engines.ssh.lab_hint import leave_ssh_config
from muster.hosts import Host, parse_hosts
from muster.shared import bootstrap

GOLDEN = Path(__file__).parents[1] / "golden"

HOSTS = "gpu01:8,root@box:2,ssh://ann@node.example.org:2222:4,[2001:db8::5]:1"


def as_text(commands: list[StartCommand]) -> str:
    """One argument a line, one command a paragraph; the interpreter's path is this machine's own."""
    paragraphs = ["\n".join(command.argv) for command in commands]
    return "\n\n".join(paragraphs).replace(sys.executable, "PYTHON") + "\n"


def test_the_command_lines_over_ssh_are_the_golden_ones():
    hosts = parse_hosts(HOSTS)
    commands = [ssh_command(host) for host in hosts]
    commands.append(ssh_command(hosts[0], python="/opt/py 3/bin/python"))
    commands.append(ssh_command(hosts[0], python="~/venv/bin/python"))
    assert as_text(commands) == (GOLDEN / "ssh_argv.txt").read_text()


def test_the_command_lines_on_this_machine_are_the_golden_ones():
    host = Host(name="here", slots=2)
    commands = [local_command(host), local_command(host, python="/opt/py 3/bin/python")]
    assert as_text(commands) == (GOLDEN / "local_argv.txt").read_text()


def test_nothing_of_the_job_is_on_a_command_line():
    # No job id, script, variable or rank: others on the hosts can read every command line.
    one, other = ssh_command(Host(name="a", slots=1)), ssh_command(Host(name="a", slots=8, gpus=tuple(range(8))))
    assert one.argv == other.argv


def test_a_prefix_before_ssh_comes_first():
    prefix = ("nsenter", "-t", "1", "ssh", "-F", "config")
    assert ssh_command(Host(name="a"), ssh=prefix).argv[: len(prefix)] == prefix


def test_the_whole_command_can_be_pasted_into_a_shell():
    command = ssh_command(Host(name="a", user="ann"), python="~/my env/python")
    assert shlex.split(str(command)) == list(command.argv)


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
@pytest.mark.parametrize("python", [None, sys.executable, "~/python with space"])
def test_a_login_shell_reads_the_remote_command_as_it_was_meant(shell: str, python: str | None, tmp_path: Path):
    # sshd gives the last argument to the login shell with -c. The first line of stdin is the code that python runs.
    (tmp_path / "python with space").symlink_to(sys.executable)
    remote = ssh_command(Host(name="a"), python=python).argv[-1]
    done = subprocess.run(
        [shell, "-c", remote],
        input="import sys;print('from', 'stdin', sys.argv[1:]);sys.exit(7)\n",
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "from stdin []\n", "")


def test_a_host_without_any_python_says_so_and_ends_with_127(tmp_path: Path):
    remote = ssh_command(Host(name="a")).argv[-1].replace(sys.executable, "/nowhere/python")
    (tmp_path / "sh").symlink_to("/bin/sh")
    done = subprocess.run(
        ["/bin/sh", "-c", remote], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 127
    assert done.stderr == "muster: tried /nowhere/python python3 python\n"
    error = explain_ssh_failure(Host(name="a"), 127, done.stderr)
    assert error.message.startswith("a: could not start Python")
    assert error.hint == "choose one with `--python PATH`"


def test_the_code_on_the_command_line_survives_every_shell():
    assert not set(bootstrap.COMMAND) & set("'\\\n!$`")


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_names_of_this_machine_need_no_ssh(name: str):
    assert is_this_machine(Host(name=name))
    assert not is_this_machine(Host(name=name, user="ann"))
    assert not is_this_machine(Host(name=name, port=2222))


def test_another_machine_needs_ssh():
    assert not is_this_machine(Host(name="gpu01.example.org"))


# What OpenSSH 9.2 printed for each of these mistakes, as it stood on stderr with BatchMode=yes.
CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Someone could be eavesdropping on you right now (man-in-the-middle attack)!
It is also possible that a host key has just been changed.
The fingerprint for the ED25519 key sent by the remote host is
SHA256:0dT0mHlR7YqS1u7yo0rCQv8Jk4qSg8bVYbXo7w3Lw0Y.
Please contact your system administrator.
Add correct host key in /home/ann/.ssh/known_hosts to get rid of this message.
Offending ED25519 key in /home/ann/.ssh/known_hosts:3
Host key for box has changed and you have requested strict checking.
Host key verification failed.
"""
UNKNOWN_KEY = """\
No ED25519 host key is known for box and you have requested strict checking.
Host key verification failed.
"""
FAILURES = [
    (
        255,
        "ssh: Could not resolve hostname box: Name or service not known\n",
        "could not resolve this host name",
        "~/.ssh/config",
    ),
    (
        255,
        "ssh: Could not resolve hostname box: Temporary failure in name resolution\n",
        "could not resolve this host name",
        "",
    ),
    (255, CHANGED, "its host key has changed since you accepted it", "ssh-keygen -R box"),
    (255, UNKNOWN_KEY, "you have not accepted its host key yet", "`muster setup ssh -H ann@box`"),
    (255, "ann@box: Permission denied (publickey).\n", "ssh login denied", "muster setup ssh -H "),
    (255, "ann@box: Permission denied (publickey,password).\n", "ssh login denied", "muster setup ssh -H "),
    (
        255,
        "ssh: connect to host box port 22: Connection refused\n",
        "no ssh server is listening",
        "ssh ann@box true",
    ),
    (255, "ssh: connect to host box port 22: Connection timed out\n", "no answer within 10 s", "ssh ann@box true"),
    (255, "Connection timed out during banner exchange\n", "no answer within 10 s", "ssh ann@box true"),
    (255, "ssh: connect to host box port 22: No route to host\n", "no route to this host", "ssh ann@box true"),
    (
        255,
        "ssh: connect to host box port 22: Network is unreachable\n",
        "the network is unreachable",
        "ssh ann@box true",
    ),
    (
        255,
        "kex_exchange_identification: read: Connection reset by peer\n",
        "Connection reset by peer",
        "ssh ann@box true",
    ),
    (127, "bash: line 1: /nope: No such file or directory\n", "could not start Python", "--python PATH"),
    (127, "zsh:1: command not found: /nope\n", "could not start Python", "--python PATH"),
    (126, "bash: line 1: /etc/passwd: Permission denied\n", "Python", "--python PATH"),
    (
        255,
        "no such identity: /home/ann/.ssh/id_lab: No such file or directory\n"
        "ssh: connect to host box port 22: Connection refused\n",
        "no ssh server is listening",
        "ssh ann@box true",
    ),
    (1, "This account is currently not available.\n", "This account is currently not available.", "ssh ann@box true"),
    (255, "", "ssh exited with code 255", "ssh ann@box true"),
    (None, "", "ssh did not start", "ssh ann@box true"),
]


@pytest.mark.parametrize(("code", "stderr", "said", "hint"), FAILURES)
def test_errors_of_ssh_become_one_sentence_and_what_to_type(code: int | None, stderr: str, said: str, hint: str):
    error = explain_ssh_failure(Host(name="box", user="ann"), code, stderr)
    assert error.message.startswith("box: ")
    assert said in error.message
    assert "\n" not in error.message
    assert hint in (error.hint or "")
    assert error.hint
    assert error.exit_code == 125


def test_a_hint_names_the_port_the_user_gave():
    error = explain_ssh_failure(Host(name="box", port=2222), 255, UNKNOWN_KEY)
    assert "`muster setup ssh -H ssh://box:2222`" in (error.hint or "")


def test_a_changed_key_on_another_port_is_removed_under_the_name_known_hosts_has_for_it():
    # ssh writes such a host as [box]:2222, and `ssh-keygen -R box` would not find it.
    error = explain_ssh_failure(Host(name="box", port=2222), 255, CHANGED)
    assert "ssh-keygen -R '[box]:2222'" in (error.hint or "")


def test_the_banner_of_a_host_does_not_hide_what_went_wrong():
    banner = "*** Authorised users only. Please report problems: page not found? ***\n"
    error = explain_ssh_failure(Host(name="box"), 255, banner + "box: Permission denied (publickey).\n")
    assert "ssh login denied" in error.message


def test_a_name_of_the_users_lab_gets_the_command_that_works_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["/venv/bin/muster", "run", "-H", "h1,h2", "my train.py"])
    (tmp_path / "muster").mkdir()
    config = tmp_path / "ssh_config"
    config.write_text("Host h1\n  HostName 10.77.0.1\nHost h2\n  HostName 10.77.0.2\nHost *\n")

    def hint(name: str) -> str:
        said = f"ssh: Could not resolve hostname {name}: Name or service not known\n"
        return explain_ssh_failure(Host(name=name), 255, said).hint or ""

    assert "~/.ssh/config" in hint("h1"), "no lab has been up"
    leave_ssh_config(str(config))
    assert "`muster lab exec h1 muster run -H h1,h2 'my train.py'`" in hint("h2")
    assert "~/.ssh/config" in hint("h3")
    monkeypatch.setattr("sys.argv", ["sweep.py", "--fast"])
    assert "`muster lab exec h1 python sweep.py --fast`" in hint("h2")
    config.unlink()
    assert "~/.ssh/config" in hint("h1"), "the lab is down"

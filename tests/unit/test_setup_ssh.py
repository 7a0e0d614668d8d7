"""`muster setup ssh`: what ssh's own configuration says."""

from __future__ import annotations

import os

import pytest

from muster.cli.setup import main
from muster.engines.ssh.engine import explain_ssh_failure
from muster.engines.ssh.setup_ssh import SshSetup
from muster.engines.ssh.ssh_config import read_config
from muster.errors import UsageError
from muster.hosts import Host

# Of `ssh -G box`, OpenSSH 9.2.
TEXT = """\
user ann
hostname box.example.org
port 2222
identityfile ~/.ssh/id_rsa
identityfile "~/.ssh/id ed25519"
userknownhostsfile ~/.ssh/known_hosts ~/.ssh/known_hosts2
"""


def test_the_configuration_of_a_host_is_what_ssh_says():
    config = read_config(TEXT)
    home = os.path.expanduser("~")
    assert config.keys == (f"{home}/.ssh/id_rsa", f"{home}/.ssh/id ed25519")
    assert config.known_hosts == f"{home}/.ssh/known_hosts"
    assert config.recorded_as == "[box.example.org]:2222"


def test_an_alias_for_the_host_key_wins():
    assert read_config(TEXT + "hostkeyalias box\n").recorded_as == "box"
    assert read_config("hostname box\nport 22\n").recorded_as == "box"


@pytest.mark.parametrize("argv", [["ssh"], ["ssh", "-H", "a", "--hostfile", "b"], ["nfs", "-H", "a"]])
def test_a_wrong_command_line_is_a_usage_error(argv: list[str]):
    with pytest.raises(UsageError):
        main(argv)


def set_up(monkeypatch: pytest.MonkeyPatch, stderr: str) -> tuple[list[str], list[str]]:
    """What `muster setup ssh -H h2` prints if ssh always ends like this, and the hosts that were sent a key."""
    host, said, sent = Host(name="h2"), list[str](), list[str]()
    setup = SshSetup([host], say=said.append, ask=lambda _: True)
    monkeypatch.setattr(setup, "try_all", lambda: {host: explain_ssh_failure(host, 255, stderr)})
    monkeypatch.setattr(setup, "own_key", lambda _: "ssh-ed25519 AAAAC3 ann@desk\n")
    monkeypatch.setattr(setup, "send_key", lambda to, _: sent.append(to.name))
    monkeypatch.setattr(setup, "_locked", lambda _: False)
    assert not setup.run()
    return said, sent


def test_a_host_that_accepts_no_passwords_gets_the_line_to_add_there(monkeypatch: pytest.MonkeyPatch):
    said, sent = set_up(monkeypatch, "ann@h2: Permission denied (publickey).\n")
    assert said == [
        "h2 does not accept passwords; add this line to its ~/.ssh/authorized_keys:\n  ssh-ed25519 AAAAC3 ann@desk"
    ]
    assert sent == []


def test_a_wrong_password_does_not_lead_to_the_advice_to_type_what_was_just_typed(monkeypatch: pytest.MonkeyPatch):
    said, sent = set_up(monkeypatch, "ann@h2: Permission denied (publickey,password).\n")
    assert sent == ["h2"]
    assert "muster setup ssh" not in said[-1]
    assert said[-1].endswith("~/.ssh/authorized_keys:\n  ssh-ed25519 AAAAC3 ann@desk")

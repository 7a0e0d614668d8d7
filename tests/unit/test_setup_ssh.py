"""`muster setup ssh`: what ssh's own configuration says."""

from __future__ import annotations

import os

import pytest

from muster.cli.setup import main
from muster.engines.ssh.ssh_config import read_config
from muster.errors import UsageError

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

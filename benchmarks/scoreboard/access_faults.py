"""Logging in: rows 19 to 22."""

from __future__ import annotations

import os
import sys

from benchmarks.scoreboard.fault import Fault
from benchmarks.scoreboard.shims import torch_folder
from benchmarks.scoreboard.stage import Stage

PASSWORD = "a plain password"

ALLOW_PASSWORDS = """\
sed -i 's/^PasswordAuthentication.*/PasswordAuthentication yes/; s/^PermitRootLogin.*/PermitRootLogin yes/' \
  /run/muster-lab/sshd_config
rm -f /run/muster-lab/authorized_keys ~/.ssh/authorized_keys
sed -i 's#^AuthorizedKeysFile.*#AuthorizedKeysFile .ssh/authorized_keys#' /run/muster-lab/sshd_config
hash=$(openssl passwd -6 'a plain password')
sed -i "s#^root:[^:]*:#root:$hash:#" /etc/shadow
"""


def ask_for_password(stage: Stage, host: str) -> None:
    """Make a host reject our key and accept a password."""
    stage.sh(host, ALLOW_PASSWORDS)
    stage.sh(
        "h1", "sed -i 's/PreferredAuthentications publickey/PreferredAuthentications publickey,password/' ~/.ssh/config"
    )
    stage.restart_sshd(host)


def _unknown_key(stage: Stage) -> None:
    stage.sh("h1", "sed -i '/^h2,/d' ~/.ssh/known_hosts")


def _changed_key(stage: Stage) -> None:
    stage.sh(
        "h2",
        "rm /run/muster-lab/host_key*; ssh-keygen -q -t ed25519 -N '' -f /run/muster-lab/host_key",
    )
    stage.restart_sshd("h2")


def _talking(stage: Stage) -> None:
    stage.write("h2", "/root/.bashrc", "echo Welcome to h2\n")


def _other_python(stage: Stage) -> None:
    for host in stage.lab.names:  # a conda environment with torch, which only an interactive shell finds
        stage.sh(
            host,
            f"{sys.executable} -m venv --without-pip /opt/conda && "
            f"ln -s {torch_folder()} /opt/conda/lib/python3*/site-packages/",
        )
    # Hides the programs of a virtual environment. Not removed: below /tmp, hosts share it with this machine.
    stage.sh("h2", f"mount -t tmpfs none {os.path.dirname(sys.executable)}")


FAULTS = (
    Fault(
        row=19,
        title="no login without a password",
        at=("h2",),
        inject=lambda stage: ask_for_password(stage, "h2"),
        answers=(("password:", PASSWORD),),
    ),
    Fault(row=20, title="host key unknown", at=("h2",), inject=_unknown_key, answers=(("[y/N]", "y"),)),
    Fault(row=20, title="host key changed", at=("h2",), inject=_changed_key, answers=(("[y/N]", "y"),)),
    Fault(row=21, title="a shell profile that talks", at=("h2",), inject=_talking),
    Fault(row=22, title="another Python, without torch", at=("h2",), inject=_other_python),
)

"""Keys and configuration that let the owner reach each host, and the hosts each other, by plain ssh."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from muster.lab.system_programs import find

SSH_PORT = 22

HOST_FILES = "/run/muster-lab"
"""Directory of these files on a host in namespaces."""

SSHD_CONFIG = """\
HostKey {files}/host_key
AuthorizedKeysFile {files}/authorized_keys
PidFile {pid_file}
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
# Half the time of the post-quantum default.
KexAlgorithms curve25519-sha256
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
AcceptEnv LANG LC_*
MaxStartups 1000
MaxSessions 1000
Subsystem sftp internal-sftp
"""

CLIENT_CONFIG = """\
Host *
  User {user}
  IdentityFile "{folder}/id_ed25519"
  IdentitiesOnly yes
  UserKnownHostsFile "{folder}/known_hosts"
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  PreferredAuthentications publickey
  ConnectTimeout 5
  LogLevel ERROR
"""


def make_keys(folder: Path) -> None:
    """Create one key for the hosts (host_key) and one for their user (id_ed25519)."""
    keygen = find("ssh-keygen")
    making = [
        subprocess.Popen([keygen, "-q", "-t", "ed25519", "-N", "", "-C", "muster-lab", "-f", str(folder / name)])
        for name in ("host_key", "id_ed25519")
    ]
    for process in making:
        if process.wait(30) != 0:
            raise RuntimeError(f"ssh-keygen failed with exit code {process.returncode}")
    (folder / "authorized_keys").write_text((folder / "id_ed25519.pub").read_text())


def known_hosts(addresses: Mapping[str, str], host_key: str, port: int = SSH_PORT) -> str:
    """One known_hosts line per host, under its name and its address."""
    return "".join(f"{name},[{address}]:{port},{address} {host_key.strip()}\n" for name, address in addresses.items())


def client_config(addresses: Mapping[str, str], folder: Path, *, user: str, port: int = SSH_PORT) -> str:
    """The ssh configuration with an entry for each host; the user's key and known_hosts are in `folder`."""
    entries = "".join(
        f"Host {name}\n  HostName {address}\n  Port {port}\n  HostKeyAlias {name}\n"
        for name, address in addresses.items()
    )
    return entries + CLIENT_CONFIG.format(user=user, folder=folder)


def sshd_config(files: str, pid_file: str) -> str:
    """The configuration of a host's sshd, whose keys are in `files`."""
    return SSHD_CONFIG.format(files=files, pid_file=pid_file)


def etc_hosts(addresses: Mapping[str, str]) -> str:
    """/etc/hosts with every host.

    The ::ffff: lines answer the reverse lookups of torch, whose sockets are IPv6 with mapped addresses;
    without them it warns "The hostname of the client socket cannot be retrieved".
    """
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    lines += [f"{address} {name}" for name, address in addresses.items()]
    lines += [f"::ffff:{address} {name}" for name, address in addresses.items()]
    return "\n".join(lines) + "\n"

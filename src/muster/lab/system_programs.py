"""The programs that the lab needs, and their Debian packages."""

from __future__ import annotations

import os
import shutil

from muster.errors import LabError

PACKAGES = {
    "bash": "bash",
    "crun": "crun",
    "ethtool": "ethtool",
    "ip": "iproute2",
    "mpiexec.hydra": "mpich",
    "mpirun.openmpi": "openmpi-bin",
    "munged": "munge",
    "nft": "nftables",
    "nsenter": "util-linux",
    "podman": "podman",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "tc": "iproute2",
    "unshare": "util-linux",
}
"""Debian package by program."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of the hosts; users other than root often lack the sbin directories in their own PATH."""


def find(program: str) -> str:
    """Return the absolute path of a program, or raise a LabError with the package to install."""
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":" + SYSTEM_PATH)
    if path is None:
        package = PACKAGES[program]
        raise LabError(
            f"the lab needs `{program}`, which is not installed",
            hint=f"install it: sudo apt-get install {package}",
        )
    # sshd refuses to start unless it is called by its absolute path.
    return os.path.abspath(path)

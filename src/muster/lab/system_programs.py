"""The programs the lab is made of, and the Debian package each comes in."""

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
"""Program name to Debian package."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where the hosts look for programs; users who are not root often lack the sbin folders in their own PATH."""


def find(program: str) -> str:
    """Return the absolute path of a program, or raise a LabError that names the package to install."""
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":" + SYSTEM_PATH)
    if path is None:
        package = PACKAGES[program]
        raise LabError(
            f"the lab needs the program `{program}`, and it is not on this machine",
            hint=f"install it: sudo apt-get install {package}",
        )
    # sshd refuses to start unless it is called by its absolute path.
    return os.path.abspath(path)

"""Slurm in a lab: munged and slurmd on every host, slurmctld on the first, which is also the login node.

Every host has 8 cores and 4 GB as far as Slurm is concerned, whatever this machine has, and is in the partition
`main`. There is no accounting (`sacct`); `scontrol show job` shows a job for five minutes after it ends.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.errors import LabError
from muster.lab.service import Run, Service

# ReturnToService=2: a rebooted node comes back by itself. Without batch_sched_delay=0 a batch job starts some 3 s
# late, and heterogeneous jobs wait for the next round of the backfill scheduler, hence the short bf_interval.
# config_overrides lets a node have more cores than this machine. KillWait is short, but long enough for a job on a busy
# machine to report how it ended.
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
KillWait=5
OverTimeLimit=0
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

NODE = "NodeName={name} CPUs=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000{gres} State=UNKNOWN"

START_LIMIT = 30.0
"""Seconds until the nodes must be ready, plus half a second per node; 63 nodes took 6 s on two busy cores."""


def slurm_conf(gpus: Mapping[str, int]) -> str:
    """The configuration of a cluster of these hosts, the first of which is the controller."""
    nodes = [NODE.format(name=name, gres=f" Gres=gpu:{count}" if count else "") for name, count in gpus.items()]
    return CONFIGURATION.format(controller=next(iter(gpus)), nodes="\n".join(nodes))


def gres_conf(gpus: Mapping[str, int]) -> str:
    """The GPU devices of each host, in Slurm's configuration."""
    lines = [
        f"NodeName={name} Name=gpu File=/dev/nvidia{f'[0-{count - 1}]' if count > 1 else '0'}\n"
        for name, count in gpus.items()
        if count
    ]
    return "".join(lines)


class Slurm(Service):
    """Slurm on all hosts of a lab; `gpus` is the number of GPUs of each."""

    title = "Slurm"
    script = "slurm.sh"
    programs = ("munged", "slurmctld", "slurmd", "srun")
    daemons = frozenset({"munged", "slurmctld", "slurmscriptd", "slurmd"})

    def __init__(self, gpus: Mapping[str, int]) -> None:
        self._gpus = dict(gpus)
        self._controller = next(iter(gpus))

    def write(self, folder: Path, header: str = "") -> None:
        """Write the configuration, the munge key shared by the hosts, and the boot script."""
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        (folder / "slurm.conf").write_text(slurm_conf(self._gpus))
        (folder / "gres.conf").write_text(gres_conf(self._gpus))
        super().write(folder, f"CONTROLLER={shlex.quote(self._controller)}\n{header}")

    def wait(self, hosts: Sequence[str], run: Run) -> None:
        """Return when Slurm can run jobs on these hosts, and on all of them if the controller has just booted."""
        hosts = list(self._gpus) if self._controller in hosts else hosts
        limit = START_LIMIT + len(hosts) / 2
        deadline = time.monotonic() + limit
        while True:
            states = self._states(run, deadline)
            missing = [host for host in hosts if not usable(states.get(host))]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise self._absent(missing[0], states.get(missing[0]), limit, run)
            time.sleep(0.05)

    def _states(self, run: Run, deadline: float) -> dict[str, str]:
        """The state of each node as sinfo shows it; empty while the controller does not answer."""
        limit = max(5.0, deadline - time.monotonic())  # sinfo may take some seconds on a busy machine
        said = run(self._controller, ["timeout", f"{limit:.0f}", "sinfo", "-h", "-N", "-o", "%N %T"], timeout=limit + 5)
        return dict(line.split(maxsplit=1) for line in said.stdout.splitlines())

    def _absent(self, host: str, state: str | None, limit: float, run: Run) -> LabError:
        if state is None:
            what, host, log = "slurmctld does not answer", self._controller, "/var/log/slurmctld.log"
        else:
            what, log = f"its node is {state}", "/var/log/slurmd.log"
        last = run(host, ["tail", "-n", "1", log], timeout=10).stdout.strip() or "(empty)"
        return LabError(f"Slurm on {host} was not ready after {limit:g} s: {what}. Last line of {log}: {last}")


def usable(state: str | None) -> bool:
    """Whether a node in this state, from sinfo's %T, is ready; `*` marks one that does not answer."""
    return state in ("idle", "mixed", "allocated", "completing")

"""All rows of the table, with their limits and the experiments that measure them."""

from __future__ import annotations

from benchmarks.engines import Engines
from benchmarks.experiment import Experiment
from benchmarks.faults import Faults
from benchmarks.help_text import HelpText
from benchmarks.many_hosts import ManyHosts
from benchmarks.memory import Memory
from benchmarks.restart import Restart
from benchmarks.second_run import SecondRun, SecondRunOverSsh
from benchmarks.start_up import StartUp
from benchmarks.table import Row


def experiments() -> tuple[Experiment, ...]:
    """All experiments, in the order of the table."""
    return (*_on_this_machine(), *_kept(), *_on_hosts())


def _on_this_machine() -> tuple[Experiment, ...]:
    return (
        StartUp(
            "first.py",
            8,
            first=Row(
                name="first_8",
                what="8 ranks on this machine, command to the last rank's first all_reduce",
                peer="torchrun",
                limit=0.30,
            ),
            whole=Row(name="whole_8", what="8 ranks on this machine, command to prompt", peer="torchrun", limit=0.30),
            cpu=Row(
                name="cpu_8", what="8 ranks on this machine, CPU seconds of the whole job", peer="torchrun", limit=0.15
            ),
        ),
        StartUp(
            "first.py",
            32,
            first=Row(
                name="first_32",
                what="32 ranks on this machine, command to the last rank's first all_reduce",
                peer="torchrun",
                limit=0.12,
            ),
        ),
        StartUp(
            "ddp.py",
            8,
            first=Row(
                name="ddp_8",
                what="8 ranks with DDP, command to the last rank's first optimizer step",
                peer="torchrun",
                limit=0.25,
            ),
        ),
        Restart(
            8,
            Row(
                name="restart_8",
                what="restart of 8 ranks, failure to the last rank's first all_reduce",
                peer="torchrun, store per attempt",
                limit=0.15,
            ),
        ),
        Memory(
            8,
            rank=Row(name="memory_8", what="memory (PSS) per rank at 8 ranks", peer="torchrun", unit="MB", limit=0.30),
            agent=Row(
                name="agent_memory",
                what="memory (PSS) of the agent on a host",
                peer="torchrun itself",
                unit="MB",
                limit=25,
                absolute=True,
            ),
        ),
        HelpText(Row(name="help", what="`muster --help`", peer="`python -c pass`", unit="ms", limit=4)),
    )


def _kept() -> tuple[Experiment, ...]:
    return (
        SecondRun(
            8,
            first=Row(
                name="second_8",
                what="second run of 8 ranks after `--keep`, command to the last rank's first all_reduce",
                peer="torchrun",
                limit=0.08,
            ),
            memory=Row(
                name="kept_memory",
                what="memory (PSS) of agent and zygote on a kept host",
                unit="MB",
                limit=250,
                absolute=True,
            ),
        ),
        SecondRunOverSsh(
            first=Row(
                name="second_ssh",
                what="second run of 4 ranks on 2 hosts over ssh, command to the last rank's first all_reduce",
                peer="first run",
                limit=0.6,
                absolute=True,
            ),
            killed=Row(
                name="keeper_killed",
                what="the process that keeps 2 hosts over ssh is killed, until nothing is left on them",
                limit=25,
                absolute=True,
            ),
        ),
    )


def _on_hosts() -> tuple[Experiment, ...]:
    return (
        ManyHosts(
            64,
            16,
            growth=Row(
                name="hosts_growth",
                what="64 hosts over ssh, one trivial process each, command to prompt",
                peer="16 hosts",
                limit=4.5,
            ),
            beside_mpirun=Row(
                name="hosts_mpirun",
                what="64 hosts over ssh, one trivial process each, command to prompt",
                peer="mpirun",
                limit=1.0,
            ),
        ),
        Engines(
            first=Row(
                name="slurm_first",
                what="4 ranks on 2 hosts of a Slurm allocation, salloc to the last rank's first all_reduce",
                peer="srun with torchrun",
                limit=1.0,
            ),
            power_off=Row(
                name="slurm_power_off",
                what="a host of a Slurm job loses power, until the screen names it",
                limit=5,
                absolute=True,
            ),
            power_off_mpi=Row(
                name="mpi_power_off",
                what="a host of an mpirun job loses power, until the screen names it",
                limit=5,
                absolute=True,
            ),
        ),
        Faults(
            4,
            failure=Row(
                name="failure",
                what="a rank fails, until every rank on 4 hosts is gone (`--grace 0`)",
                limit=1,
                absolute=True,
            ),
            cut=Row(
                name="cut",
                what="a cable is cut, until the screen names the host",
                limit=3,
                absolute=True,
            ),
            power_off=Row(
                name="power_off",
                what="a host loses power, until the screen names it",
                limit=3,
                absolute=True,
            ),
        ),
    )

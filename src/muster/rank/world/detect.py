"""Which launcher started this process, and what it told it: pure functions of an environment.

`detect(env, argv)` asks each detector in turn and takes the first answer. The order matters:

1. RANK and WORLD_SIZE (`muster run`, torchrun, torch.distributed.launch, a script's own mp.spawn): set for
   each rank by what stands closest to it, also when torchrun itself was started by srun, mpirun or PBS.
2. OMPI_COMM_WORLD_* (mpirun of Open MPI), then PMI_* (MPICH, Intel MPI): inside a Slurm job both start their
   daemons with srun, and the ranks inherit the daemon's SLURM_PROCID, which is wrong for them.
3. SLURM_* of a step. salloc and sbatch set SLURM_NTASKS and even SLURM_PROCID, so only step variables count.
4. PBS_* of a task: last, because PBS tells a task where it runs but not how many there are.
5. Nothing of all that: plain `python script.py`, a world of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from muster.engines.slurm.environment import in_step
from muster.errors import UsageError
from muster.hosts.counts import expand_counts
from muster.rank.world.master_address import (
    LOOPBACK,
    ONE_HOST,
    Clue,
    Master,
    Meeting,
    clue_from_nodelist,
    clue_from_orte,
    find_master,
)

MUSTER, TORCHRUN, LAUNCH, ENVIRONMENT = "muster run", "torchrun", "torch.distributed.launch", "environment"
OPEN_MPI, MPICH, SRUN, PBS, PYTHON = (
    "mpirun (Open MPI)",
    "mpiexec (MPICH or Intel MPI)",
    "srun",
    "PBS task",
    "python",
)
ARGUMENTS = "arguments"


@dataclass(frozen=True, kw_only=True)
class Detection:
    """The place of one process in its job, as its launcher told it; None where the launcher does not say."""

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    master_addr: str | None
    """Where rank 0 is, or most likely is."""
    master_port: int | None
    """None for a free port, which rank 0 chooses."""
    meeting: Meeting | None = None
    """How the ranks find rank 0, where address and port are not both given."""
    reason: str
    """One sentence that names the variables behind the answer."""


def detect(env: Mapping[str, str], argv: Sequence[str] = ()) -> Detection:
    """Find out which launcher started this process: `muster.detect(os.environ, sys.argv)`.

    Variables that contradict each other or are no numbers raise a MusterError that names them.
    """
    for detector in DETECTORS:
        found = detector(env, argv)
        if found:
            return found
    return from_nothing(env)


def from_torch_variables(env: Mapping[str, str], argv: Sequence[str]) -> Detection | None:
    """RANK and WORLD_SIZE, set by muster run, torchrun, torch.distributed.launch, or a script for itself."""
    if "RANK" not in env:
        return None
    rank, size = _rank_and_size(env, "RANK", "WORLD_SIZE")
    local_rank, local_size = _optional(env, "LOCAL_RANK"), _optional(env, "LOCAL_WORLD_SIZE")
    flag = _local_rank_flag(argv)
    why = [f"RANK={rank} and WORLD_SIZE={size}"]
    if "MUSTER_JOB" in env:
        launcher = MUSTER
        why.append(f"MUSTER_JOB={env['MUSTER_JOB']}")
    elif flag:
        launcher = LAUNCH
        why.append(f"{flag[0]} among the arguments")
    elif "TORCHELASTIC_RUN_ID" in env:
        launcher = TORCHRUN
        why.append("TORCHELASTIC_RUN_ID")
    else:
        launcher = ENVIRONMENT
    if local_rank is None and flag:  # torch.distributed.launch before 1.9 gave the flag instead of LOCAL_RANK
        local_rank = flag[1]
    return _detection(launcher, rank, size, local_rank, local_size, find_master(env), why)


def from_open_mpi(env: Mapping[str, str], argv: Sequence[str]) -> Detection | None:
    """OMPI_COMM_WORLD_*, set by Open MPI's mpirun."""
    if "OMPI_COMM_WORLD_RANK" not in env:
        return None
    rank, size = _rank_and_size(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    local_rank = _optional(env, "OMPI_COMM_WORLD_LOCAL_RANK")
    local_size = _optional(env, "OMPI_COMM_WORLD_LOCAL_SIZE")
    if local_size == size:
        clue = ONE_HOST
    else:
        # Inside a Slurm job mpirun fills the job's hosts in their order.
        clue = clue_from_nodelist(env, "SLURM_JOB_NODELIST") or clue_from_orte(env)
        if clue is None and "PMIX_NAMESPACE" in env:
            clue = Clue(ask="PMIx", reason="mpirun is asked for the host of rank 0 (PMIX_NAMESPACE)")
    # Two mpiruns may hit on the same number, but they cannot listen at the same place.
    job = _joined(env, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")
    master = find_master(env, job=job, clue=clue)
    why = [f"OMPI_COMM_WORLD_RANK={rank} and OMPI_COMM_WORLD_SIZE={size}"]
    return _detection(OPEN_MPI, rank, size, local_rank, local_size, master, why)


def from_pmi(env: Mapping[str, str], argv: Sequence[str]) -> Detection | None:
    """PMI_RANK and PMI_SIZE, set by the Hydra launcher of MPICH and Intel MPI and by Cray's PALS."""
    if "PMI_RANK" not in env:
        return None
    local_rank = _optional(env, "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
    if local_rank is None and "SLURM_STEP_ID" in env:
        return None  # srun --mpi=pmi2 sets PMI_RANK too, but no local rank: its SLURM_* say more
    rank, size = _rank_and_size(env, "PMI_RANK", "PMI_SIZE")
    local_size = _optional(env, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
    if "PMI_FD" in env:
        clue = Clue(ask="PMI", reason="rank 0 tells its place to mpiexec, and the others ask there (PMI_FD)")
    else:
        clue = ONE_HOST if local_size == size else clue_from_nodelist(env, "SLURM_JOB_NODELIST")
    job = _first(env, "PMI_JOBID", "PALS_APID", "SLURM_JOB_ID", "PBS_JOBID")
    master = find_master(env, job=job, clue=clue)
    return _detection(MPICH, rank, size, local_rank, local_size, master, [f"PMI_RANK={rank} and PMI_SIZE={size}"])


def from_slurm_step(env: Mapping[str, str], argv: Sequence[str]) -> Detection | None:
    """SLURM_* of a step, set by srun; an sbatch script or a salloc shell is not taken for a step."""
    # Lightning took an allocation's SLURM_NTASKS for a step's (its #20776); SLURM_STEP_NUM_TASKS is a step's.
    if not in_step(env) or not {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"} <= env.keys():
        return None
    rank, size = _rank_and_size(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    local_rank = _optional(env, "SLURM_LOCALID")
    local_size = _tasks_here(env)
    clue = ONE_HOST if local_size == size else clue_from_nodelist(env, "SLURM_STEP_NODELIST")
    master = find_master(env, job=_joined(env, "SLURM_JOB_ID", "SLURM_STEP_ID"), clue=clue)
    why = [f"SLURM_STEP_ID={env['SLURM_STEP_ID']}, SLURM_PROCID={rank} and SLURM_STEP_NUM_TASKS={size}"]
    return _detection(SRUN, rank, size, local_rank, local_size, master, why)


def from_pbs_task(env: Mapping[str, str], argv: Sequence[str]) -> Detection | None:
    """PBS_* of a task started by pbsdsh or pbs_tmrsh; the job script itself is a world of one."""
    if not {"PBS_JOBID", "PBS_NODENUM", "PBS_TASKNUM"} <= env.keys() or _is_pbs_script(env):
        return None
    job, node = env["PBS_JOBID"], env["PBS_NODENUM"]
    if {"PBS_VNODENUM", "PBS_NP"} <= env.keys():  # Torque numbers the tasks; OpenPBS only the hosts
        rank, size = _rank_and_size(env, "PBS_VNODENUM", "PBS_NP")
        why = f"PBS_VNODENUM={rank} and PBS_NP={size}"
        local_rank = local_size = None
    elif "WORLD_SIZE" in env:
        rank, size = _rank_and_size(env, "PBS_NODENUM", "WORLD_SIZE")
        why = f"PBS_NODENUM={rank} and WORLD_SIZE={size}, one task on each host"
        local_rank, local_size = 0, 1
    else:
        raise UsageError(
            f"this is a task of PBS job {job} on its host number {node} (PBS_NODENUM), "
            "but PBS does not tell a task how many there are",
            hint="put `muster run` into the job script, or set RANK, WORLD_SIZE and MASTER_ADDR in each task",
        )
    master = find_master(env, job=("PBS_JOBID", job))
    return _detection(PBS, rank, size, local_rank, local_size, master, [f"PBS_JOBID={job}, {why}"])


def from_nothing(env: Mapping[str, str]) -> Detection:
    """Plain `python script.py`: a world of one, at a port that is chosen when it is made."""
    if env.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            f"WORLD_SIZE={env['WORLD_SIZE']} is set but RANK is not, and no launcher's variables are there",
            hint="set RANK as well, or unset WORLD_SIZE to run as a world of one",
        )
    why = "none of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_STEP_ID or PBS_TASKNUM marks a rank of a larger job"
    return _detection(PYTHON, 0, 1, 0, 1, Master(addr=LOOPBACK, port=None, reasons=()), [f"{why}: a world of one"])


def from_arguments(env: Mapping[str, str], rank: int, world_size: int, local_rank: int | None) -> Detection:
    """Take what a script hands to `muster.init(rank=, world_size=)`, as a worker of mp.spawn does."""
    if not 0 <= rank < world_size:
        raise UsageError(f"rank={rank} is not a rank of a world of {world_size} (world_size={world_size})")
    why = [f"rank={rank} and world_size={world_size} were given"]
    return _detection(ARGUMENTS, rank, world_size, local_rank, None, find_master(env), why)


Detector = Callable[[Mapping[str, str], Sequence[str]], "Detection | None"]

DETECTORS: tuple[Detector, ...] = (
    from_torch_variables,
    from_open_mpi,
    from_pmi,
    from_slurm_step,
    from_pbs_task,
)


def _detection(
    launcher: str,
    rank: int,
    size: int,
    local_rank: int | None,
    local_size: int | None,
    master: Master,
    why: list[str],
) -> Detection:
    if local_rank is not None and local_size is not None and local_rank >= local_size:
        raise UsageError(
            f"{launcher}: local rank {local_rank} is not below the local size {local_size}",
            hint="LOCAL_RANK and LOCAL_WORLD_SIZE, or the launcher's own names for them, disagree",
        )
    return Detection(
        launcher=launcher,
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        master_addr=master.addr,
        master_port=master.port,
        meeting=master.meeting,
        reason="; ".join([", ".join(why), *master.reasons]),
    )


def _rank_and_size(env: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    if size_name not in env:
        raise UsageError(
            f"{rank_name}={env[rank_name]} is set but {size_name} is not",
            hint=f"a launcher sets both; set {size_name}, or unset {rank_name} to run as a world of one",
        )
    rank, size = _number(env, rank_name), _number(env, size_name)
    if rank >= size:
        raise UsageError(
            f"{rank_name}={rank} is not a rank of a world of {size} ({size_name}={size})",
            hint=f"ranks count from 0, so {rank_name} must be below {size_name}",
        )
    return rank, size


def _number(env: Mapping[str, str], name: str) -> int:
    text = env[name].strip()
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{name}={env[name]} is not a number", hint=f"set {name} to a whole number from 0")
    return int(text)


def _optional(env: Mapping[str, str], *names: str) -> int | None:
    """The number in the first of these variables that is there."""
    return next((_number(env, name) for name in names if name in env), None)


def _tasks_here(env: Mapping[str, str]) -> int | None:
    name, node = "SLURM_STEP_TASKS_PER_NODE", _optional(env, "SLURM_NODEID")
    counts = expand_counts(env[name], source=name) if env.get(name) else []
    return counts[node] if node is not None and node < len(counts) else None


def _joined(env: Mapping[str, str], *names: str) -> tuple[str, str] | None:
    """Those of the variables that are there as one id, with the name for it."""
    there = [name for name in names if env.get(name)]
    return (" and ".join(there), " ".join(env[name] for name in there)) if there else None


def _first(env: Mapping[str, str], *names: str) -> tuple[str, str] | None:
    return next(((name, env[name]) for name in names if env.get(name)), None)


def _local_rank_flag(argv: Sequence[str]) -> tuple[str, int] | None:
    """Find `--local-rank=N` or, from torch before 2.0, `--local_rank=N`, also in two words."""
    for i, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name not in ("--local-rank", "--local_rank"):
            continue
        text = value if equals else "".join(argv[i + 1 : i + 2])
        if text.isascii() and text.isdigit():  # -1 is what scripts mean by "not given"
            return f"{name}={text}", int(text)
    return None


def _is_pbs_script(env: Mapping[str, str]) -> bool:
    # The script is task 1 of host 0. OpenPBS numbers tasks in hexadecimal (00000004, 20000003).
    try:
        return int(env["PBS_TASKNUM"], 16) == 1 and env["PBS_NODENUM"] == "0"
    except ValueError:
        raise UsageError(f"PBS_TASKNUM={env['PBS_TASKNUM']} is not a task number of PBS") from None

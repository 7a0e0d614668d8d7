"""Detects which launcher started this process, from its environment. Pure.

`detect(env, argv)` uses the first of these that applies:

1. RANK and WORLD_SIZE (`muster run`, torchrun, torch.distributed.launch, a script's own mp.spawn): set for each
   rank by its direct launcher, even if that was started by a scheduler or mpirun.
2. The variables of mpirun and of schedulers, in the order of `engines/table.py`.
3. None of these: plain `python script.py`, a single rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.engines.rank_variables import LOOPBACK, optional, rank_and_size, read_rank
from muster.engines.table import LAUNCHERS
from muster.errors import UsageError
from muster.rank.world.master_address import Master, Meeting, find_master

MUSTER, TORCHRUN, LAUNCH, ENVIRONMENT = "muster run", "torchrun", "torch.distributed.launch", "environment"
PYTHON = "python"
ARGUMENTS = "arguments"


@dataclass(frozen=True, kw_only=True)
class Detection:
    """The rank of a process and related values according to its launcher; None if the launcher does not set them."""

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    master_addr: str | None
    """The known or most likely address of rank 0."""
    master_port: int | None
    """None for a free port chosen by rank 0."""
    meeting: Meeting | None = None
    """How the ranks find rank 0, if address and port are not both given."""
    reason: str
    """One sentence that names the variables behind the result."""


def detect(env: Mapping[str, str], argv: Sequence[str] = ()) -> Detection:
    """Detect which launcher started this process: `muster.detect(os.environ, sys.argv)`.

    Contradictory or non-numeric variables raise a MusterError that names them.
    """
    return from_torch_variables(env, argv) or from_launcher(env) or from_nothing(env)


def from_torch_variables(env: Mapping[str, str], argv: Sequence[str]) -> Detection | None:
    """RANK and WORLD_SIZE, set by muster run, torchrun, torch.distributed.launch, or the script itself."""
    if "RANK" not in env:
        return None
    rank, size = rank_and_size(env, "RANK", "WORLD_SIZE")
    local_rank, local_size = optional(env, "LOCAL_RANK"), optional(env, "LOCAL_WORLD_SIZE")
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
    if local_rank is None and flag:  # torch.distributed.launch before 1.9 passed the flag instead of LOCAL_RANK
        local_rank = flag[1]
    return _detection(launcher, rank, size, local_rank, local_size, find_master(env), why)


def from_launcher(env: Mapping[str, str]) -> Detection | None:
    """The variables of mpirun, or of a scheduler that starts tasks."""
    found = read_rank(env)
    if found is None:
        return None
    master = find_master(env, job=found.job, clue=found.clue)
    return _detection(found.launcher, found.rank, found.size, found.local_rank, found.local_size, master, [found.why])


def from_nothing(env: Mapping[str, str]) -> Detection:
    """Plain `python script.py`: a single rank, with a port that is chosen later."""
    if env.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            f"WORLD_SIZE={env['WORLD_SIZE']} is set but RANK is not, and no launcher has set its variables",
            hint="set RANK as well, or unset WORLD_SIZE to run a single rank",
        )
    *marks, last = ("RANK", *(variable for variable, _ in LAUNCHERS))
    return Detection(
        launcher=PYTHON,
        rank=0,
        size=1,
        local_rank=0,
        local_size=1,
        master_addr=LOOPBACK,
        master_port=None,
        reason=f"none of {', '.join(marks)} or {last} identifies a rank of a larger job, so this is the only rank",
    )


def from_arguments(env: Mapping[str, str], rank: int, world_size: int, local_rank: int | None) -> Detection:
    """Use the arguments of `muster.init(rank=, world_size=)`, as passed by a worker of mp.spawn."""
    for name, value in (("rank", rank), ("world_size", world_size), ("local_rank", local_rank)):
        if type(value) is not int and not (name == "local_rank" and value is None):
            raise UsageError(f"{name} must be a whole number, got {value!r}", hint="muster.init(rank=0, world_size=2)")
    if local_rank is not None and local_rank < 0:
        raise UsageError(f"local_rank must be at least 0, got {local_rank}", hint="leave local_rank out")
    if not 0 <= rank < world_size:
        raise UsageError(
            f"rank={rank} is out of range for world_size={world_size}",
            hint="ranks start at 0, so rank must be less than world_size",
        )
    why = [f"rank={rank} and world_size={world_size} were given"]
    return _detection(ARGUMENTS, rank, world_size, local_rank, None, find_master(env), why)


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
            f"{launcher}: local rank {local_rank} is out of range for local size {local_size}",
            hint="check LOCAL_RANK and LOCAL_WORLD_SIZE, or the launcher's own variables for them",
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


def _local_rank_flag(argv: Sequence[str]) -> tuple[str, int] | None:
    """Find `--local-rank=N` or, from torch before 2.0, `--local_rank=N`, also as two arguments."""
    for i, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name not in ("--local-rank", "--local_rank"):
            continue
        text = value if equals else "".join(argv[i + 1 : i + 2])
        if text.isascii() and text.isdigit() and len(text) <= 18:  # -1 means "not given" in scripts
            return f"{name}={text}", int(text)
    return None

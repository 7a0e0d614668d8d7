"""Show the configuration of each rank: torch, CUDA, devices and scheduler variables.

    muster run -H gpu[01-04]:8 -m muster.recipes.check_config
    torchrun --nproc-per-node 2 -m muster.recipes.check_config
    mpirun -np 2 python -m muster.recipes.check_config
    python -m muster.recipes.check_config                    this machine only

prints one block for each rank, in rank order. If the ranks cannot connect, each one prints its own block and then the
error, because that is when the information is needed most.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Mapping

import muster

SCHEDULER_VARIABLE = re.compile(r"(SLURM|PBS|OMPI|PMI|PMIX)_")

# PBS_JOBCOOKIE and SLURM_JWT let anyone who reads them act as the user; Open MPI stores a key in *_transports and the
# command line, which may contain secrets, in OMPI_ARGV.
SECRET = re.compile(r"PASS|SECRET|TOKEN|KEY|COOKIE|JWT|CRED|AUTH|_transports|ARGV", re.IGNORECASE)


def main() -> None:
    """Join the world, collect every rank's report, print them on rank 0."""
    parser = argparse.ArgumentParser(
        description="Show the configuration of each rank: torch, CUDA, devices and scheduler variables.",
        allow_abbrev=False,
    )
    parser.add_argument("--backend", choices=("nccl", "gloo", "mpi"), help="default: nccl with GPUs, else gloo")
    # torch.distributed.launch passes it (--local_rank before torch 2.0); muster.init() reads it itself.
    parser.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    report = [f"host : {socket.gethostname()}", *torch_report(), *scheduler_report(os.environ)]
    try:
        with muster.init(backend=args.backend) as world:
            collect(world, [*world_report(world), *report])
    except muster.MusterError as error:
        print("\n".join(report), flush=True)
        parser.exit(error.exit_code, error.report())


def world_report(world: muster.World) -> list[str]:
    """Describe this rank's place in the world."""
    return [
        f"rank : {world.rank} of {world.size}, local rank {world.local_rank} of {world.local_size}",
        f"launcher : {world.launcher} ({world.launcher_reason})",
        f"backend : {world.backend} ({world.backend_reason})",
    ]


def torch_report() -> list[str]:
    """Describe torch and the devices it sees."""
    try:
        import torch
    except ImportError as error:
        return [f"cannot import torch : {error}"]
    lines = [f"torch version : {torch.__version__}", f"torch git version : {torch.version.git_version}"]
    if not torch.cuda.is_available():
        return [*lines, "no cuda available"]
    lines += [
        f"torch version cuda : {torch.version.cuda}",
        f"number of cuda device(s) : {torch.cuda.device_count()}",
    ]
    for i in range(torch.cuda.device_count()):
        lines.append(f"- device {i} : {torch.cuda.get_device_properties(i)}")  # pyright: ignore[reportUnknownMemberType]
    return lines


def scheduler_report(env: Mapping[str, str]) -> list[str]:
    """List the environment variables of Slurm, PBS and MPI, without secret values."""
    return [
        f"{name} : {'(hidden)' if SECRET.search(name) else env[name]}"
        for name in sorted(env)
        if SCHEDULER_VARIABLE.match(name)
    ]


def collect(world: muster.World, report: list[str]) -> None:
    """Send every rank's report to rank 0, which prints them all in order."""
    import torch.distributed as dist

    reports = [""] * world.size if world.rank == 0 else None
    dist.gather_object("\n".join(report), reports, dst=0)
    if reports:
        print("\n\n".join(reports), flush=True)


if __name__ == "__main__":
    main()

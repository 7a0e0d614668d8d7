"""Batch jobs for Slurm: `#SBATCH` directives, and the output of sbatch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from muster.engines.requeue import LIMIT, WARNING
from muster.errors import UsageError
from muster.submit.batch_units import DAY, clock
from muster.submit.request import Request

# Variables that sbatch itself reads (sbatch(1), INPUT ENVIRONMENT VARIABLES); all other SLURM_ ones describe a job.
_SETTINGS = {
    "SLURM_CONF",
    "SLURM_CLUSTERS",
    "SLURM_DEBUG_FLAGS",
    "SLURM_EXIT_ERROR",
    "SLURM_STEP_KILLED_MSG_NODE_ID",
    "SLURM_TIME_FORMAT",
    "SLURM_UMASK",
}


class Slurm:
    """Slurm, through sbatch."""

    title = "Slurm"
    program = "sbatch"
    listing = "squeue --me"
    options: tuple[str, ...] = ("--parsable",)
    mark = "#SBATCH"
    suffix = ".sbatch"
    hints: tuple[tuple[str, str], ...] = (
        (r"invalid partition", "`sinfo -s` lists the partitions; choose one with --partition"),
        (r"invalid account|invalid qos|account/partition combination", "`sacctmgr show assoc user=$USER` lists yours"),
        (r"node count|node configuration|more processors|gres", "`sinfo -o '%P %D %c %m %G'` shows what nodes have"),
        (r"time limit", "`sinfo -o '%P %l'` shows the time limit of each partition"),
        (r"memory", "`sinfo -o '%P %m'` shows the memory of a node in MB"),
        (r"unable to contact|configuration source|communication|credential", "check that `sinfo` works here"),
    )

    def check(self, request: Request) -> None:
        """Reject `--extra` lines with which sbatch would do something else than requested, without a message."""
        wanted = {"--signal": request.warning, "--requeue": request.requeue}
        for option, value in wanted.items():
            if value is not None and request.extra_sets(option, "--no-requeue" if option == "--requeue" else option):
                hint = f"use `muster submit {option} {value}` without that line"
                raise UsageError(f"--extra with {option} contradicts the {option} of `muster submit`", hint=hint)
        if request.extra_sets("--wait", "-W"):
            raise UsageError(
                "--extra --wait: sbatch would wait for the end of the job",
                hint="omit it, and wait with `srun --dependency=afterany:ID true` or `muster logs --follow`",
            )
        export = request.extra_value("--export")
        passed = [] if export is None else [item.partition("=")[0] for item in export.split(",")]
        missing = [name for name in request.variables if export is not None and not {"ALL", name} & {*passed}]
        if missing:
            raise UsageError(
                f"--env {missing[0]}: --extra '--export={export}' does not pass it to the job",
                hint=f"use --extra '--export={export},{missing[0]}', or --env {missing[0]}=VALUE",
            )

    def check_program(self, path: str) -> None:
        """Any sbatch is Slurm's."""

    def directives(self, request: Request) -> list[str]:
        """The directives of the job; sbatch uses the last of several for the same option, so `--extra` wins."""
        memory = request.memory
        wanted = {
            "--job-name": request.name,
            "--nodes": request.nodes,
            "--gpus-per-node": request.gpus_per_node,
            "--mem": None if memory is None else f"{memory.amount}{memory.unit}",
            "--time": None if request.seconds is None else slurm_time(request.seconds),
            "--partition": request.queue,
            "--account": request.account,
            "--output": None if _output_is_chosen(request) else "%x-%A_%a.out" if _array(request) else "%x-%j.out",
            # B: to the script alone, which is `muster run`; it warns each rank once
            "--signal": None if request.warning is None else f"B:USR1@{request.warning}",
            "--open-mode": None if request.requeue is None else "append",
        }
        lines = [f"{option}={value}" for option, value in wanted.items() if value is not None]
        lines += ["--requeue"] * (request.requeue is not None) + ["--no-kill"] * request.outlives_nodes
        return [*lines, *request.extra]

    def exports(self, request: Request) -> dict[str, str]:
        """The limit, and when Slurm sends its warning."""
        found = {LIMIT: request.requeue, WARNING: request.warning}
        return {name: str(value) for name, value in found.items() if request.requeue is not None and value is not None}

    def environment(self, request: Request, env: Mapping[str, str]) -> dict[str, str]:
        """The environment for sbatch, which Slurm passes to the job, without what would change the job's request.

        That is the state of a surrounding job (an inherited SLURM_CPU_BIND would pin the new job's ranks to cores of
        the old one), and SBATCH_ variables for options in the script, because sbatch prefers them to directives.
        """
        inside = "SLURM_JOB_ID" in env
        said = {
            "SBATCH_JOB_NAME": True,
            "SBATCH_GPUS_PER_NODE": request.gpus_per_node,
            "SBATCH_MEM_PER_NODE": request.memory,
            "SBATCH_TIMELIMIT": request.seconds,
            "SBATCH_PARTITION": request.queue,
            "SBATCH_ACCOUNT": request.account,
            "SBATCH_OUTPUT": not _output_is_chosen(request),
            "SBATCH_SIGNAL": request.warning,
            "SBATCH_OPEN_MODE": request.requeue,
            "SBATCH_REQUEUE": request.requeue,
            "SBATCH_NO_REQUEUE": request.requeue,
            "SBATCH_NO_KILL": request.outlives_nodes,
        }
        return {
            name: value
            for name, value in env.items()
            if not (inside and name.startswith("SLURM_") and name not in _SETTINGS) and not said.get(name)
        }

    def job_id(self, printed: str) -> str | None:
        """`4711`, or `4711;cluster` with several clusters."""
        ids = re.findall(r"^(\d+(?:;\S+)?)\s*$", printed, re.MULTILINE)
        return ids[-1] if ids else None

    def name(self, request: Request) -> str:
        """The value of --job-name."""
        return request.extra_value("--job-name", "-J") or request.name

    def number(self, job: str) -> str:
        """`4711`."""
        return job.partition(";")[0]

    def next_steps(self, request: Request, job: str) -> list[tuple[str, str]]:
        """squeue, the log, scancel."""
        number, _, cluster = job.partition(";")
        where = f"-M {cluster} " if cluster else ""
        steps = [(f"squeue {where}-j {number}", "show its state: PD (pending, with the reason) or R (running)")]
        if not _output_is_chosen(request):
            first = re.match(r"\d+", _array(request))  # each job of an array has its own file
            file = f"{self.name(request)}-{number}{f'_{first[0]}' if first else ''}.out"
            steps.append((f"tail -F {shlex.quote(file)}", "follow its output (the file appears once it runs)"))
        return [*steps, (f"scancel {where}{number}", "cancel it")]


def slurm_time(seconds: int) -> str:
    """`02:00:00`, or `1-12:00:00` for a day or more."""
    days, rest = divmod(seconds, DAY)
    return f"{days}-{clock(rest)}" if days else clock(rest)


def _array(request: Request) -> str:
    """The indices of a job array, if `--extra` requests one."""
    return request.extra_value("--array", "-a") or ""


def _output_is_chosen(request: Request) -> bool:
    return request.extra_sets("--output", "-o")

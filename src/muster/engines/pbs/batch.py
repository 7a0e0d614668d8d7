"""Batch jobs for PBS (OpenPBS, PBS Pro; Torque with its own `-l nodes=`): `#PBS` directives, the output of qsub."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from itertools import pairwise

from muster.engines.requeue import END, LIMIT, WARNING
from muster.errors import MusterError, UsageError
from muster.submit.batch_units import clock
from muster.submit.request import Request

_LONGEST_NAME = 230  # PBS_MAXJOBNAME in OpenPBS

_BESIDE_SELECT = re.compile(r"\b(select|nodes|ncpus|ngpus|mem|mpiprocs)=")
"""Resources that PBS does not allow together with `-l select=`, including a second select."""

_NO_ID = re.compile(r"-[fhIVX]*z[fhIVXz]*")
"""`-z`, alone or after other options without a value."""


class Pbs:
    """PBS, through qsub."""

    title = "PBS"
    program = "qsub"
    listing = "qstat -u $USER"
    options: tuple[str, ...] = ()
    mark = "#PBS"
    suffix = ".pbs"
    hints: tuple[tuple[str, str], ...] = (
        (r"unknown queue|access to queue", "`qstat -Q` lists the queues; choose one with --queue"),
        (r"cannot be used with", "omit --nodes, --gpus-per-node and --mem, and put everything into --extra '-l …'"),
        (r"resource limits|insufficient|unknown resource", "`qstat -Qf` shows the limits, `pbsnodes -a` the nodes"),
        (r"illegal -n value|name is too long", "use a shorter --name; older versions allow 15 characters"),
        (
            r"tolerate_node_failures|illegal -W",
            "this PBS ends a job that loses a node; omit --spares and --min-hosts",
        ),
        (r"illegal -k value", "this PBS does not support `-k oed`; replace it with --extra '-k n'"),
        (r"project|account", "--account becomes -A; some sites need --extra '-P PROJECT' instead"),
        (r"connect|pbs_server|no default server", "check that `qstat -B` works here"),
    )

    def check(self, request: Request) -> None:
        """Check the job name, that resources are requested in one way only, and that qsub prints the job id."""
        name = self.name(request)
        if not name[:1].isalpha() or len(name) > _LONGEST_NAME:
            raise UsageError(
                f"--name {name}: a PBS job name must start with a letter and have at most 230 characters",
                hint="for example --name big-run",
            )
        if request.warning is not None and request.seconds is None:
            raise UsageError(
                "--requeue and --signal need --time with PBS, which sends no signal before the walltime limit",
                hint="add --time, for example --time 2h",
            )
        given = _asks_for_nodes(request)
        clash = _BESIDE_SELECT.search(" ".join(_resources(request)))
        if given and clash:
            raise UsageError(
                f"{given} becomes a `-l select` line, which PBS does not allow together with `-l {clash[0]}…`",
                hint="omit --nodes, --gpus-per-node and --mem, and put everything into --extra '-l …'",
            )
        _check_extra(request)

    def check_program(self, path: str) -> None:
        """Reject Slurm's qsub wrapper, a Perl script (Debian: slurm-wlm-torque); the qsub of PBS is a binary."""
        with open(path, "rb") as file:
            begin = file.read(4096)
        if begin.startswith(b"#!") and b"part of Slurm" in begin:
            raise MusterError(
                f"{path} belongs to Slurm and does not support all PBS options; nothing was submitted",
                hint="this is a Slurm cluster: use --slurm instead of --pbs",
            )

    def directives(self, request: Request) -> list[str]:
        """The directives of the job; `--extra` replaces them, because PBS uses the first of two values of `-l`."""
        lines = [] if request.extra_sets("-N") else [f"-N {request.name}"]
        if _asks_for_nodes(request):
            lines.append(f"-l select={_chunks(request)}")
        if (request.nodes or 1) > 1 and not _sets_resource(request, "place"):
            lines.append("-l place=scatter")  # otherwise PBS places as many chunks on one host as fit
        limited = request.seconds is not None and not _sets_resource(request, "walltime")
        wanted = {
            "-l": f"walltime={clock(request.seconds or 0)}" if limited else None,
            "-q": request.queue,
            "-A": request.account,
            "-v": ",".join(request.variables) or None,
            "-j": None if request.extra_sets("-j", "-e") else "oe",
            # d: written to its final location while the job runs; PBS holds a job whose directory does not exist
            "-k": None if request.extra_sets("-k", "-o", "-e") else "oed",
        }
        lines += [f"{option} {value}" for option, value in wanted.items() if value is not None]
        lines += ["-r y"] * (request.requeue is not None)
        lines += ["-W tolerate_node_failures=all"] * request.outlives_nodes
        return [*lines, *request.extra]

    def exports(self, request: Request) -> dict[str, str]:
        """The limit, when to warn the ranks, and when the walltime is over."""
        if request.requeue is None and request.warning is None:
            return {}
        found = {LIMIT: request.requeue or 0}
        if request.warning is not None:
            found |= {WARNING: request.warning, END: f"$(($(date +%s) + {request.seconds}))"}
        return {name: str(value) for name, value in found.items()}

    def environment(self, request: Request, env: Mapping[str, str]) -> dict[str, str]:
        """The environment unchanged: qsub passes on only what -v and -V name."""
        del request
        return dict(env)

    def job_id(self, printed: str) -> str | None:
        """`4711.server`; `4711[].server` for an array."""
        ids = re.findall(r"^(\d+(?:\[\d*\])?(?:\.\S+)?)\s*$", printed, re.MULTILINE)
        return ids[-1] if ids else None

    def name(self, request: Request) -> str:
        """The value of -N."""
        return request.extra_value("-N") or request.name

    def number(self, job: str) -> str:
        """`4711`."""
        return re.sub(r"\D.*", "", job)

    def next_steps(self, request: Request, job: str) -> list[tuple[str, str]]:
        """qstat, the log, qdel."""
        typed = shlex.quote(job)  # the id of an array has brackets
        steps = [(f"qstat -s {typed}", "show its state: Q (queued, with the reason) or R (running)")]
        if request.extra_sets("-V"):
            steps.append((f"qstat -f {typed}", "check Variable_List: OpenPBS 23.06 ignores -V, --env NAME works"))
        if not request.extra_sets("-o", "-k", "-j", "-e"):
            late = "follow its output (at some sites the file appears when the job ends)"
            first = re.match(r"\d+", request.extra_value("-J") or "")  # each job of an array has its own file
            index = f".{first[0]}" if first else ""
            steps.append((f"tail -F {self.name(request)}.o{self.number(job)}{index}", late))
        return [*steps, (f"qdel {typed}", "cancel it")]


def _asks_for_nodes(request: Request) -> str:
    """The given options that become a select line."""
    given = {"--nodes": request.nodes, "--gpus-per-node": request.gpus_per_node, "--mem": request.memory}
    return " and ".join(option for option, value in given.items() if value is not None)


def _chunks(request: Request) -> str:
    """One chunk per node, with one CPU per rank; a chunk without ncpus would get one CPU."""
    ranks = request.nproc or request.gpus_per_node or 1
    parts = [f"{request.nodes or 1}", f"ncpus={max(ranks, request.gpus_per_node or 1)}"]
    if request.gpus_per_node is not None:
        parts.append(f"ngpus={request.gpus_per_node}")
    parts.append(f"mpiprocs={ranks}")
    if request.memory is not None:
        parts.append(f"mem={request.memory.amount}{request.memory.unit.lower()}b")
    return ":".join(parts)


def _check_extra(request: Request) -> None:
    """Reject `--extra` lines with which the job would run without what Muster needs to know or to pass on."""
    words = request.extra_words()
    hidden = next((word for word in words if _NO_ID.fullmatch(word)), None)
    if hidden is not None:
        raise UsageError(
            f"--extra {hidden}: qsub would not print the job id, which `muster submit` needs",
            hint="omit -z; on stdout, `muster submit` prints only the job id",
        )
    if "block=true" in (request.extra_value("-W") or ""):
        raise UsageError(
            "--extra '-W block=true': qsub would wait for the end of the job",
            hint="omit it, and wait with `qstat -x` or `muster logs --follow`",
        )
    if request.variables and request.extra_sets("-v"):
        raise UsageError(
            f"--env {request.variables[0]} becomes a `-v` line, and qsub uses only the last one, that of --extra",
            hint="pass every variable with --env, either NAME or NAME=VALUE",
        )
    if request.warning is not None and _sets_resource(request, "walltime"):
        raise UsageError(
            "--requeue and --signal count from --time, which --extra '-l walltime=…' replaces",
            hint="set the walltime with --time only",
        )


def _sets_resource(request: Request, name: str) -> bool:
    """Whether an `--extra` line has `-l name=…`."""
    items = (item.strip() for value in _resources(request) for item in value.split(","))
    return any(item.partition("=")[0] == name for item in items)


def _resources(request: Request) -> list[str]:
    """The values of `-l` among the extra lines."""
    words = request.extra_words()
    attached = [word[2:] for word in words if word.startswith("-l") and len(word) > 2]
    return attached + [value for word, value in pairwise(words) if word == "-l"]

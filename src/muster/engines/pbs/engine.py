"""The PBS engine: one PBS task per host, so that PBS accounts for the agents and ends them with the job."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from muster.agent import dial_back
from muster.engines.allocation import Allocation
from muster.engines.container.container import PULL_LIMIT, Container, code_reason, container_of
from muster.engines.engine import (
    DIALING_AGENT,
    ORDER_FILE,
    AgentSpec,
    Choice,
    Engine,
    Launch,
    StartCommand,
    can_lack_hosts,
    in_container,
    one_per_host,
)
from muster.engines.pbs.environment import in_pbs_job, nodefile_lines, nodefile_text, same_host
from muster.engines.pbs.qstat import pbs_program, read_pbs_here
from muster.engines.requeue import VARIABLES, tracking_env
from muster.engines.ssh.engine import SshEngine
from muster.environment import carried
from muster.errors import HostError, MusterError
from muster.hosts import Host
from muster.plan import Plan
from muster.shared.machine import interfaces
from muster.spec import RunSpec
from muster.text import printable

if TYPE_CHECKING:
    import argparse

    from muster.engines.pbs.batch import Pbs
    from muster.engines.requeue import Requeue

_STATUS = re.compile(r"task 0x[0-9a-fA-F]+ exit status (\d+)")  # all that pbsdsh prints, on its stdout
_NO_PROGRAM = 254
"""Exit status of a PBS task whose program does not exist."""

_SEE_OUTPUT = "see the output file of the PBS job"
_MEANING = "in a PBS job this means qdel, the walltime limit or a requeue"


_OF_THIS_HOST = (
    *("_", "HOST", "HOSTNAME", "OLDPWD", "PWD", "SHLVL", "SSH_*", "XDG_RUNTIME_DIR", "XDG_SESSION_*"),
    *("PBS_NODENUM", "PBS_TASKNUM", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES"),
    *VARIABLES,
)


class PbsEngine(Engine):
    """PBS tasks inside a job, or ssh with pbs_attach; qsub queues a job."""

    name = "pbs"
    signals_from = "PBS"
    job_kind = "PBS job"
    more_memory = "request more memory (`muster submit --mem 64G`, or `mem=` in the select of qsub)"
    more_cpus = "ncpus=8 in PBS"
    services: Mapping[str, str] = {"pbs_mom": "pbs"}
    outside_job = (
        "not inside a PBS job (PBS_JOBID and PBS_ENVIRONMENT are not both set)",
        "use `muster submit --pbs`, or `qsub -I` and then `muster run`",
    )

    def detect(self, env: Mapping[str, str]) -> Allocation | None:
        """The PBS job that this process runs in."""
        return read_pbs_here(env) if in_pbs_job(env) else None

    def launch(self, choice: Choice, spec: RunSpec, folder: str) -> Launch:
        """One pbsdsh per host, or one ssh per host with `--pbs-start ssh`."""
        if spec.pbs_start == "ssh":
            return PbsOverSsh().launch(choice, spec, folder)
        box = container_of(spec, folder)
        pbsdsh = pbs_program("pbsdsh", os.environ)
        if shutil.which(pbsdsh) is None:
            raise MusterError("--engine pbs: `pbsdsh` not found on this host", hint="use `--pbs-start ssh`")
        commands = pbsdsh_commands(
            one_per_host(choice.hosts),
            nodefile_lines(nodefile_text(os.environ)),
            pbsdsh=pbsdsh,
            python=spec.python_on_all(choice.hosts),
            library_path=os.environ.get("LD_LIBRARY_PATH"),
            box=box,
        )
        return Launch(
            engine=self,
            commands=commands,
            channel="dial-back",
            attach=_attach(choice, box),
            pull_limit=PULL_LIMIT if box else 0.0,
            can_lack_hosts=can_lack_hosts(spec),
        )

    def carried(self, env: Mapping[str, str], spec: RunSpec) -> dict[str, str]:
        """All variables of the job script except those specific to this host; in a container only the usual ones.

        PBS sets OMP_NUM_THREADS for one process per chunk, but several ranks share those CPUs, so it is not sent.
        """
        if spec.image:
            return carried(env)
        kept = {name: value for name, value in env.items() if not any(fnmatchcase(name, p) for p in _OF_THIS_HOST)}
        if "NCPUS" in kept and kept.get("OMP_NUM_THREADS") == kept["NCPUS"]:
            del kept["OMP_NUM_THREADS"]
        return kept

    def rank_env(self, plan: Plan, rank: int) -> Mapping[str, str]:
        """The run to continue, in a job that may be requeued."""
        return tracking_env(plan, rank)

    def requeue(self, env: Mapping[str, str]) -> Requeue | None:
        """qrerun, or qsub where users may not use it."""
        from muster.engines.pbs.pbs_requeue import read_requeue

        return read_requeue(env)

    def cancel_command(self, env: Mapping[str, str]) -> str:
        """qdel."""
        return qdel(env)

    def misplaced(self, agent: AgentSpec, host: str, agents: Sequence[AgentSpec]) -> MusterError | None:
        """The error if pbsdsh started the agent of one host on another, as it does after changes to PBS_NODEFILE."""
        if not is_misplaced(agent.host.name, host, [other.host.name for other in agents], is_here=names_this_machine):
            return None
        return HostError(
            agent.name,
            f"pbsdsh started its agent on {printable(host)}, because PBS_NODEFILE differs from the file that PBS wrote",
            hint="leave PBS_NODEFILE as PBS sets it, and select hosts with `-H host1,host2`",
        )

    def explain(self, command: StartCommand, code: int | None, text: str) -> MusterError:
        """Explain the output of a pbsdsh that did not start its agent; the task's own output is in the job's file."""
        host = command.agents[0].name
        status = _STATUS.search(text)
        if status is None:
            last = text.splitlines()[-1:] or [f"exit code {code}"]
            return HostError(host, f"pbsdsh did not start an agent: {last[0]}", hint="try `--pbs-start ssh`")
        number = int(status[1])
        reason = code_reason(command.box, number) if command.box else None
        if reason is not None:
            return HostError(host, reason[0], hint=reason[1])
        python = next((word for word in command.argv[4:] if word.startswith("/") and word != "/usr/bin/env"), "python3")
        meaning = {
            _NO_PROGRAM: (f"{python} not found", "choose a Python with `--python PATH`"),
            127: ("its shell could not find the command to start", _SEE_OUTPUT),
            dial_back.NO_ORDER: (
                "the job directory is not visible there",
                "set XDG_STATE_HOME to a directory that all hosts share, or use `--pbs-start ssh`",
            ),
            dial_back.OLD_PYTHON: (f"{python} is older than Python 3.9", "choose another with `--python PATH`"),
            dial_back.NO_WAY: (
                "it cannot reach this host",
                "see the output file of the PBS job, and check for a firewall",
            ),
        }
        words, hint = meaning.get(number, (f"the agent exited with code {number}", _SEE_OUTPUT))
        return HostError(host, words, hint=hint)

    def usual_reason(self, number: int) -> str | None:
        """PBS ends a job with SIGTERM."""
        return _MEANING if number == signal.SIGTERM else None

    def add_options(self, group: argparse._ArgumentGroup) -> None:
        """`--pbs-start`."""
        group.add_argument(
            "--pbs-start",
            metavar="HOW",
            choices=("tm", "ssh"),
            default="tm",
            help="how to start agents in a PBS job: tm (as PBS tasks, the default) or ssh (with pbs_attach)",
        )

    @property
    def batch(self) -> Pbs:
        """qsub."""
        from muster.engines.pbs.batch import Pbs

        return Pbs()


class PbsOverSsh(SshEngine):
    """ssh logins to the hosts of a PBS job; pbs_attach makes each a part of the job."""

    name = "pbs"
    signals_from = "PBS"

    def launch(self, choice: Choice, spec: RunSpec, folder: str) -> Launch:
        """As with ssh; the agent of this host is attached to the job too, because it has a session of its own."""
        launch = super().launch(choice, spec, folder)
        attach = _attach(choice, container_of(spec, folder))
        if not attach:
            return launch
        here = tuple(one if one.remote else replace(one, argv=(*attach[:-1], *one.argv)) for one in launch.commands)
        return replace(launch, commands=here, attach=attach)

    def rank_env(self, plan: Plan, rank: int) -> Mapping[str, str]:
        """The run to continue, in a job that may be requeued."""
        return tracking_env(plan, rank)

    def cancel_command(self, env: Mapping[str, str]) -> str:
        """qdel."""
        return qdel(env)

    def is_here(self, host: Host, hosts: Sequence[Host]) -> bool:
        """Whether a host is this machine; PBS may add a domain to a name that is short here."""
        own = socket.gethostname().partition(".")[0]
        return super().is_here(host, hosts) or same_host(own, [other.name for other in hosts]) == host.name

    def usual_reason(self, number: int) -> str | None:
        """PBS ends a job with SIGTERM."""
        return _MEANING if number == signal.SIGTERM else None

    def wrapper(self, choice: Choice) -> str:
        """pbs_attach."""
        job = choice.allocation
        return attached(job.id, pbs_program("pbs_attach", os.environ)) if job is not None else ""


def _attach(choice: Choice, box: Container | None) -> tuple[str, ...]:
    """The command that adds the session of a process to the job; nothing on Torque, or for ranks in containers."""
    program = shutil.which(pbs_program("pbs_attach", os.environ))
    if choice.allocation is None or program is None or box is not None:
        return ()
    return (program, "-j", choice.allocation.id, "-p")


def pbsdsh_commands(
    agents: Sequence[AgentSpec],
    lines: Mapping[str, int],
    *,
    pbsdsh: str,
    python: str | None,
    library_path: str | None,
    box: Container | None,
) -> tuple[StartCommand, ...]:
    """One pbsdsh per host; `lines` has the index of each host's first line in the nodefile, which pbsdsh expects.

    A task starts with an empty environment, and a Python from an environment module may need `library_path` to start.
    """
    interpreter = python or (sys.executable if box is None else "python3")
    libraries = ("/usr/bin/env", f"LD_LIBRARY_PATH={library_path}") if library_path and box is None else ()
    commands: list[StartCommand] = []
    for agent in agents:
        task = in_container((*libraries, interpreter, "-c", DIALING_AGENT, ORDER_FILE, agent.key), box)
        argv = (pbsdsh, "-n", str(lines[agent.host.name]), "--", *task)
        commands.append(StartCommand(argv=argv, agents=(agent,), box=box))
    return tuple(commands)


def is_misplaced(name: str, reported: str, hosts: Sequence[str], *, is_here: Callable[[str], bool]) -> bool:
    """Whether an agent that was to run on the host `name` reports to be on another one of these `hosts`, or here.

    A name that no host has proves nothing: PBS may use other names than the hosts themselves.
    """
    if same_host(reported, [name]) is not None:
        return False
    here = socket.gethostname().partition(".")[0]
    return same_host(reported, hosts) is not None or (same_host(reported, [here]) is not None and not is_here(name))


def names_this_machine(name: str) -> bool:
    """Whether a name stands for an address of this machine; True if that cannot be determined."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError:
        return True
    return any(address in found for interface in interfaces() for address in interface["addresses"])


def qdel(env: Mapping[str, str]) -> str:
    """The command that ends the PBS job."""
    return f"qdel {shlex.quote(env['PBS_JOBID'])}" if in_pbs_job(env) else ""


def attached(job_id: str, pbs_attach: str) -> str:
    """The prefix that makes a command run by ssh a part of the PBS job, so that it ends with the job."""
    return f"{shlex.quote(pbs_attach)} -j {shlex.quote(job_id)} -s"

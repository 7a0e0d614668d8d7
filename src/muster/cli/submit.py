"""`muster submit`: writes a batch script with one `muster run`, and submits it to Slurm, PBS or Kubernetes."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.api.arguments import Parser, option, positive, seconds, with_dashes
from muster.api.hints import MEANINGS, nearest, refuse_misplaced
from muster.api.prepared import make_job
from muster.api.run_options import asking_for_allocation, check_env_files, copied_names, parse_options, spec_of
from muster.api.torchrun_options import refuse
from muster.cli import run
from muster.engines.engine import Choice
from muster.engines.table import built_in, load
from muster.errors import UsageError
from muster.hosts import Host
from muster.output.escapes import clean_for
from muster.submit.activation import named_activation, own_activation
from muster.submit.batch_script import write_script
from muster.submit.batch_units import read_memory, read_time
from muster.submit.queue import submit
from muster.submit.request import Request, check_extra, check_name, check_word, job_name, without_secrets
from muster.submit.scheduler import Scheduler
from muster.text import count

EXAMPLES = """\
examples:
  muster submit --slurm --nodes 4 --gpus-per-node 8 --time 2h train.py --lr 0.1
  muster submit --slurm --nodes 2 --partition cpu --extra '--cpus-per-task=16' --nproc 8 train.py
  muster submit --pbs --nodes 2 --gpus-per-node 4 --queue gpu --account ab12 --time 1:30:00 train.py
  muster submit --pbs --queue gpuvolta --time 2h --extra '-P ab12' --extra '-l ncpus=96,ngpus=8' train.py
  muster submit --slurm --nodes 4 --time 8h --requeue 10 --signal 120 train.py
  muster submit --slurm --nodes 5 --spares 1 --requeue 10 train.py
  muster submit --slurm --module cuda/12.4 --dry-run train.py > train.sbatch
  muster submit --k8s --nodes 4 --gpus-per-node 8 --image registry.example/train:1 train.py

All options of `muster run` are accepted as well, before the script, and become part of the job: --nproc, --env,
--grace, --restarts and so on. Options after the script belong to the script.

The job runs in the working directory and in the Python environment that Muster runs in now. The batch script and the
output stay in that directory. stdout contains only the job's id: id=$(muster submit --slurm train.py)
"""

_WARNING = 120
"""Seconds between the warning signal and the time limit with --requeue."""

_LONGEST_WARNING = 65535
"""Seconds; the most that Slurm accepts."""

# The scheduler chooses the hosts; dest in the options of `muster run`: (its name, what to do instead).
_NOT_IN_A_JOB = {
    "hosts": ("-H", "set the number of nodes with --nodes"),
    "hostfile": ("--hostfile", "set the number of nodes with --nodes"),
    "lab": ("--lab", "`muster run --lab` runs it on virtual hosts on this machine"),
}

_MEANINGS = {
    "--gpus-per-node": ("--gpus",),
    **MEANINGS,
    "--hosts": (),  # sbatch's --nodelist goes into --extra
    "--quiet": ("--silent",),
    "--partition": ("-p", "-q"),
    "--account": ("-A",),
    "--name": ("-J", "--job-name"),
}
"""Options of sbatch, qsub and other tools, by the equivalent option of `muster submit`."""


def _schedulers() -> dict[str, Scheduler]:
    """Return the batch systems by their options."""
    return {f"--{engine.name}": engine.batch for engine in built_in() if engine.batch is not None}


def parser() -> Parser:
    """Return the parser of `muster submit` without the options of `muster run`."""
    p = Parser(
        prog="muster submit",
        usage=f"muster submit {'|'.join((*_schedulers(), '--k8s'))} [options] [options of muster run] SCRIPT "
        "[its arguments]",
        description="Write a batch script or a manifest that contains one `muster run`, and submit it.",
        epilog=EXAMPLES,
    )
    to = p.add_argument_group("scheduler").add_mutually_exclusive_group()
    for flag, scheduler in _schedulers().items():
        about = f"write {scheduler.mark} directives, submit with {scheduler.program}"
        option(to, flag, about, dest="scheduler", action="store_const", const=scheduler)
    option(to, "--k8s", "write the manifest of a Kubernetes Job, create it with kubectl")
    what = p.add_argument_group("resources (default: those of your site)")
    option(what, "--nodes N", "number of nodes", type=positive)
    option(what, "--gpus-per-node N", "GPUs per node", type=positive)
    option(what, "--mem SIZE", "memory per node: 200G")
    option(what, "--time TIME", "time limit: 2:00:00, 90m, 2h or 1-12:00:00")
    option(what, "--partition --queue NAME", "partition (Slurm) or queue (PBS); both names work for both")
    option(what, "--account NAME", "account to charge")
    option(what, "--name NAME", "name of the job and of its files (default: the script's)")
    about = "continue the job up to N times after its time limit or a preemption, as the same Muster job"
    option(what, "--requeue N", about, type=positive)
    about = "send SIGUSR1 to all ranks this long before the time limit, such as 120 or 5m (default with --requeue: 120)"
    option(what, "--signal DURATION", about, type=seconds)
    about = "one more directive, without #SBATCH or #PBS: '--exclusive' (repeatable)"
    option(what, "--extra LINE", about, action="append", default=[])
    pods = p.add_argument_group("Kubernetes")
    about = "resource that --gpus-per-node requests, such as amd.com/gpu (default: nvidia.com/gpu)"
    option(pods, "--gpu-resource NAME", about, default="nvidia.com/gpu")
    about = "YAML or JSON with fields of the Job to add or replace, such as volumes, labels or tolerations"
    option(pods, "--overlay FILE", about)
    where = p.add_argument_group("environment")
    about = "environment module to load first: cuda/12.4 (repeatable)"
    option(where, "--module NAME", about, dest="modules", action="append", default=[])
    about = "virtual or conda environment to activate, with --k8s in the image (default: the one Muster runs in)"
    option(where, "--venv PATH", about)
    option(p, "--dry-run", "print the batch script or manifest without submitting it")
    return p


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command line in its three parts."""

    own: list[str]
    """Options of `muster submit`."""
    run: list[str]
    """Options of `muster run`."""
    script: list[str]
    """The script, or the module after `-m`, with its arguments."""


def main(argv: list[str]) -> int:
    """Print or submit the script the command line describes and return the exit code."""
    line = split(argv)
    options = parse_options(parser(), line.own, "submit")
    if options.k8s:
        from muster.cli.submit_k8s import submit_to_kubernetes

        return submit_to_kubernetes(options, line)
    scheduler = choose(options)
    request = make_request(options, line, scheduler)
    scheduler.check(request)
    text = write_script(request, scheduler)
    if options.dry_run:
        sys.stdout.buffer.write(os.fsencode(text))
        return 0
    submitted = submit(text, request, scheduler, os.environ)
    sys.stderr.write(clean_for(sys.stderr, submitted.said))
    steps = scheduler.next_steps(request, submitted.job)
    width = max(len(step) for step, _ in steps)
    said = [f"submitted job {scheduler.number(submitted.job)}; its batch script is {submitted.script.name}"]
    said += [f"  {step:<{width}}  {purpose}" for step, purpose in steps]
    sys.stderr.write("\n".join(said) + "\n")
    print(submitted.job)
    return 0


def split(argv: Sequence[str]) -> CommandLine:
    """Split a command line; the script starts at the first word that is neither an option nor its value.

    A value that starts with a dash is joined to its option with `=`, as argparse needs it: `--extra '--exclusive'`.
    """
    line = CommandLine(own=[], run=[], script=[])
    ours, theirs = _options(parser()), _options(run.parser())
    theirs.pop("-t")  # torchrun's --tee, but sbatch's --time
    theirs.pop("-c")  # --pod-container, but sbatch's --cpus-per-task
    words = iter(argv)
    for word in words:
        if word in ("-", "--") or not word.startswith("-"):
            line.script[:] = [word, *words]
            break
        name, value = _parts(word, {**theirs, **ours})
        if name not in ours and name not in theirs:
            near = nearest(name, [*parser().shown_options(), *run.parser().shown_options()], _MEANINGS)
            hint = f"did you mean `{near}`?" if near else _as_extra(name, value, next(words, ""))
            raise UsageError(f"muster submit: unknown option {name}", hint=hint)
        takes_value, part = (ours[name], line.own) if name in ours else (theirs[name], line.run)
        if takes_value and value is None:
            value = next(words, None)
            if value is None:
                raise UsageError(f"muster submit: {name} needs a value", hint="`muster submit --help` shows examples")
        part += _tied(name, value)
    return line


def _as_extra(name: str, value: str | None, following: str) -> str:
    """Return a hint how to pass an option of the scheduler; the word after it is its value, unless it is the script."""
    if value is None and following and not following.startswith("-") and not _is_script(following):
        value = following
    between = "=" if name.startswith("--") else " "
    line = name if value is None else f"{name}{between}{value}"
    quoted = shlex.quote(line) if "'" in line else f"'{line}'"
    return f"pass an option of the scheduler with --extra {quoted}; `muster submit --help` lists those of Muster"


def _is_script(word: str) -> bool:
    return word.endswith(".py") or os.path.isfile(word)


def _all_options() -> Parser:
    """A parser that knows the options of `muster submit` and of `muster run`."""
    p = parser()
    p._option_string_actions = {**run.parser()._option_string_actions, **p._option_string_actions}
    return p


def _options(parser: argparse.ArgumentParser) -> dict[str, bool]:
    """Return every option of a parser, and whether it takes a value."""
    return {name: action.nargs != 0 for name, action in parser._option_string_actions.items()}


def _parts(word: str, known: Mapping[str, bool]) -> tuple[str, str | None]:
    """Split `--nodes=4` and `-Ha,b` into name and value; the value of `--nodes` alone is None."""
    word = with_dashes(word, known)
    if word.startswith("--") or word in known:
        name, equals, value = word.partition("=")
        return name, value if equals else None
    return (word[:2], word[2:]) if known.get(word[:2]) and len(word) > 2 else (word, None)


def _tied(name: str, value: str | None) -> list[str]:
    if value is None:
        return [name]
    return [f"{name}={value}"] if name.startswith("--") and value.startswith("-") else [name, value]


def choose(options: argparse.Namespace) -> Scheduler:
    """Return the scheduler that the options select."""
    if options.scheduler is not None:
        return options.scheduler
    known = _schedulers()
    here = [(flag, each.program) for flag, each in known.items() if shutil.which(each.program)]
    hint = f"this machine has {here[0][1]}: add {here[0][0]}" if len(here) == 1 else None
    example = "for example `muster submit --slurm --nodes 2 train.py`"
    raise UsageError(f"no scheduler given, add {', '.join(known)} or --k8s", hint=hint or example)


def _refuse_kubernetes(options: argparse.Namespace) -> None:
    """UsageError for an option that only --k8s understands."""
    if options.overlay is not None:
        raise UsageError("--overlay works only with --k8s", hint="use --extra for a directive")


def make_request(options: argparse.Namespace, line: CommandLine, scheduler: Scheduler) -> Request:
    """Return the request; checks everything that can be checked before the job runs."""
    _refuse_kubernetes(options)
    typed = ("muster", "submit", *line.own, *line.run)
    run_options, script = run.parse([*line.run, *line.script], places=False, typed=typed)
    for dest, (flag, instead) in _NOT_IN_A_JOB.items():
        if getattr(run_options, dest) is not None:
            raise UsageError(f"{flag} cannot be used with `muster submit`: the scheduler chooses hosts", hint=instead)
    asked = asking_for_allocation(run_options)
    if asked is not None:
        flag, instead = asked.allocation_option, f"pass options for {asked.signals_from} with --extra"
        raise UsageError(f"{flag} cannot be used with `muster submit`: the scheduler chooses hosts", hint=instead)
    if not script:
        raise UsageError("no script to run", hint="for example `muster submit --slurm --nodes 2 train.py --lr 0.1`")
    # Detect a missing script or an invalid option now, not after hours in the queue.
    refuse(run_options)
    run.check_controller(run_options)
    check_env_files(run_options)
    _check_nnodes(getattr(run_options, "nnodes", None), options)
    spec = spec_of(run_options, script)
    nodes = options.nodes or max(spec.spares + 1, spec.min_hosts or 1)  # --extra may request them
    hosts = tuple(Host(name=f"node{number}") for number in range(1, nodes + 1))
    job = make_job(spec, Choice(engine=load("local"), hosts=hosts))
    limit = read_time(options.time) if options.time is not None else None
    if job.script is not None:
        refuse_misplaced(_all_options(), [*line.own, *line.run, *line.script], script, job.script.text)
    options_of_run, secrets = without_secrets(line.run)
    return Request(
        typed=(*(word for word in line.own if word != "--dry-run"), *options_of_run, *line.script),
        run=(*options_of_run, *line.script),
        secrets=secrets,
        name=check_name(options.name) if options.name is not None else job_name(script[0], module=run_options.module),
        folder=_folder(),
        activation=named_activation(options.venv, os.environ)
        if options.venv is not None
        else own_activation(sys.executable, sys.prefix, sys.base_prefix, os.environ),
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        memory=read_memory(options.mem) if options.mem is not None else None,
        seconds=limit,
        queue=check_word("--partition", options.partition) if options.partition is not None else None,
        account=check_word("--account", options.account) if options.account is not None else None,
        modules=tuple(options.modules),
        extra=tuple(check_extra(scheduler.mark, line) for line in options.extra),
        nproc=spec.nproc,
        variables=copied_names(run_options),
        requeue=options.requeue,
        warning=_warning(options, limit),
        outlives_nodes=bool(spec.spares or spec.min_hosts),
    )


def _warning(options: argparse.Namespace, limit: int | None) -> int | None:
    """Return how long before the time limit the ranks get a signal; UsageError if the job would never run until then.

    Without a signal, ranks would have only what the site allows between SIGTERM and SIGKILL.
    """
    if options.signal is None and (options.requeue is None or (limit is not None and limit <= _WARNING)):
        return None
    warning = _WARNING if options.signal is None else round(options.signal)
    if not 0 < warning <= _LONGEST_WARNING:
        raise UsageError(f"--signal must be between 1 and {_LONGEST_WARNING} seconds", hint="for example --signal 120")
    if limit is not None and warning >= limit:
        raise UsageError(
            f"--signal {warning}: the signal would come before the job starts, its time limit is {limit} s",
            hint="use a shorter --signal or a longer --time",
        )
    return warning


def _check_nnodes(wanted: tuple[int, int] | None, options: argparse.Namespace) -> None:
    """UsageError if torchrun's --nnodes does not match the nodes that the batch job requests."""
    if wanted is None or (options.nodes is None and options.extra):  # --extra may request nodes
        return
    nodes = options.nodes or 1
    if not wanted[0] <= nodes <= wanted[1]:
        hint = f"request them with --nodes {wanted[0]}, and their GPUs with --gpus-per-node N"
        raise UsageError(f"--nnodes {wanted[0]}: the batch job requests {count(nodes, 'node')}", hint=hint)


def _folder() -> str:
    """Return the working directory as in the shell's PWD, if valid: a home behind a symbolic link keeps its path."""
    named = os.environ.get("PWD", "")
    same = os.path.isabs(named) and os.path.isdir(named) and os.path.samefile(named, ".")
    return named if same else os.getcwd()

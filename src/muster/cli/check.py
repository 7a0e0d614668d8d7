"""`muster check`: look at every host before a job does."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from dataclasses import replace
from textwrap import dedent

from muster.check.cluster_facts import Cluster, Wanted
from muster.check.finding import Finding, worst_first
from muster.cli.arguments import Parser
from muster.cli.options import Where, add_engine, add_network, add_where, allocate, asking_for_allocation, located
from muster.controller.source_code import find_script
from muster.environment import parse_env
from muster.job import Job, make_job_folder, new_job_id
from muster.plan import labels

EXIT_ERRORS = 3
"""Exit code when a job on these hosts would fail."""

EXIT_WARNINGS = 1
"""Exit code for warnings, with --strict."""

EXAMPLES = """\
examples:
  muster check -H gpu[01-04]                         four machines over ssh, in a second or two
  muster check -H gpu[01-04] --deep                  also start ranks on them: torch, collectives, bandwidth
  muster check -H a,b train.py --data /data/set      also whether both have this code and this data
  muster check --engine slurm --slurm-args "-N2"     inside a step of Slurm, where limits may differ
  muster check --image nvcr/pytorch -H a,b           inside a container
  muster check -H a,b --json | jq .findings

It prints what differs between the hosts and then each finding, the worst first: what is wrong on which host, what you
would have seen, and the command that mends it. Nothing is changed on any host.

  error    a job on these hosts would fail
  warning  it may fail, or run slower than it could
  note     `muster run` copes with it by itself; other launchers do not

Exit code: 0 when there is no error; 1 when there are warnings and --strict was given; 3 when there is an error; 2 for a
wrong command line; 125 when Muster itself failed.
"""


def parser() -> argparse.ArgumentParser:
    """The options of `muster check`."""
    p = Parser(
        prog="muster check",
        usage="muster check [options] [SCRIPT [its arguments]]",
        description="Look at every host before a job does: what differs, what is wrong, and how to mend it.",
        epilog=dedent(EXAMPLES),
    )
    add_where(p)
    add_engine(p)
    add_network(p)
    what = p.add_argument_group("what")
    what.add_argument("--deep", action="store_true", help="also run ranks on the hosts, as the job would; takes longer")
    what.add_argument(
        "--data",
        metavar="PATH",
        action="append",
        default=[],
        help="a file or folder every host must have (again for more)",
    )
    what.add_argument("--env", metavar="NAME[=VALUE]", action="append", default=[], help="a variable of the job")
    what.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as for `python -m`")
    what.add_argument("--strict", action="store_true", help="exit code 1 when there are warnings")
    what.add_argument("--json", action="store_true", help="print it for programs")
    p.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    p.set_defaults(dry_run=False, sync=False)
    return p


def main(argv: list[str]) -> int:
    """Check the hosts and return the exit code."""
    begin = time.monotonic()
    options = parser().parse_args(argv)
    engine = asking_for_allocation(options)
    if engine is not None:
        return allocate(engine, options, "check", argv, "check")
    with located(options) as where:
        return check(options, where, argv, begin)


def check(options: argparse.Namespace, where: Where, argv: list[str], begin: float) -> int:
    """Run the checks and print the report."""
    import asyncio
    import json

    from muster.check.checks import QUICK
    from muster.check.definition import judge_all, load
    from muster.check.findings_report import Report, as_data, facts, render
    from muster.check.quick import quick
    from muster.check.session import CONNECT_TIMEOUT

    job = make_job(options, where)
    # The first value ssh is given counts.
    impatient = replace(where, ssh=(*where.ssh, f"-oConnectTimeout={CONNECT_TIMEOUT}"))
    launch = impatient.launch(job)
    checks = load(QUICK)
    wanted = make_wanted(options, job, argv)
    folder = make_job_folder(job.id)
    for sentence in where.choice.said:
        print(f"muster: {sentence}", file=sys.stderr)
    try:
        cluster = asyncio.run(quick(job, launch, checks, wanted, nproc=options.nproc, folder=folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = judge_all(checks, cluster)
    known = facts(checks, cluster)
    measured: dict[str, dict[str, str]] = {}
    if options.deep:
        if any(finding.severity == "error" for finding in found):
            print("muster: no ranks were started: mend the errors first", file=sys.stderr)
        else:
            deeper, measured = deep(options, job, where, cluster)
            found = worst_first([*deeper, *found])
    report = Report(
        findings=found,
        facts=known,
        measured=measured,
        cluster=cluster,
        hosts=len(where.choice.hosts),
        seconds=time.monotonic() - begin,
    )
    if options.json:
        print(json.dumps(as_data(report), indent=1))
    else:
        sys.stdout.write(render(report))
    severities = {finding.severity for finding in found}
    if "error" in severities:
        return EXIT_ERRORS
    return EXIT_WARNINGS if options.strict and "warning" in severities else 0


def deep(
    options: argparse.Namespace, job: Job, where: Where, cluster: Cluster
) -> tuple[list[Finding], dict[str, dict[str, str]]]:
    """Run ranks on the hosts; what they found, and what they measured."""
    from muster.check.deep.judge_ranks import judge, table, with_names
    from muster.check.deep.measure import measure

    job = replace(job, id=new_job_id("check"), sync=True)
    if where.choice.engine.no_zygote:
        job = job.with_preload(())
    measured = measure(job, where.launch(job), nproc=options.nproc, quiet=options.json)
    if measured.failure:
        what = f"the ranks of the deep check failed: {measured.failure}"
        return [Finding(severity="error", hosts=(), what=what, symptom="the same, in your job", check="deep")], {}
    results = with_names(measured.results, labels(where.choice.hosts))
    return list(judge(cluster, results)), table(results)


def make_job(options: argparse.Namespace, where: Where) -> Job:
    """The job that would run; its script may be left open."""
    command: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    target, *args = command or [""]
    return Job(
        id=new_job_id("check"),
        target=target,
        kind="module" if options.module else "script",
        args=tuple(args),
        cwd=os.getcwd(),
        hosts=where.choice.hosts,
        env=parse_env(options.env, os.environ),
        carried=where.choice.engine.carried(os.environ, where.spec),
        master_addr=options.master_addr,
        master_port=options.master_port,
        interface=options.interface,
    )


def make_wanted(options: argparse.Namespace, job: Job, argv: list[str]) -> Wanted:
    """What the checks must know of the job."""
    from muster.check.here import are_here, code_here, paths_in

    script = find_script(job) if job.target else None
    data = tuple(options.data)
    paths = tuple(dict.fromkeys([*data, *paths_in(job.args)]))
    return Wanted(
        env={**job.carried, **job.env},
        named=job.env,
        cwd=job.cwd,
        script=script.path if script else "",
        code=code_here(job.cwd, script),
        paths=paths,
        data=data,
        here=are_here(job.cwd, paths),
        master_addr=job.master_addr,
        master_port=job.master_port,
        interface=job.interface,
        python=options.python,
        image=options.image,
        argv=("muster", "check", *argv),
    )

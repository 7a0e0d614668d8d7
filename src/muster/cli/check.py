"""`muster check`: checks hosts for problems before a run."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from dataclasses import replace
from textwrap import dedent

from muster.api.arguments import Parser, option
from muster.api.hints import refuse_misplaced
from muster.api.prepared import lab_hosts, prepare
from muster.api.run_options import (
    add_debug,
    add_engine,
    add_env,
    add_network,
    add_where,
    allocate,
    asking_for_allocation,
    parse_options,
    spec_of,
)
from muster.check.cluster_facts import Cluster
from muster.check.finding import Finding, worst_first
from muster.controller.source_code import find_script
from muster.errors import UsageError
from muster.job import make_job_folder
from muster.output.escapes import clean_for
from muster.plan import labels
from muster.spec import RunSpec

EXIT_ERRORS = 3
"""Exit code if a job on these hosts would fail."""

EXIT_WARNINGS = 1
"""Exit code for warnings, with --strict."""

EXAMPLES = """\
examples:
  muster check -H gpu[01-04]                         four hosts over ssh, in a second or two
  muster check -H gpu[01-04] --deep                  also start ranks: torch, collectives, bandwidth
  muster check -H a,b --data /data/set               also check that both have this data
  muster check -H a,b train.py --data /data/set      also check the code, and paths among its arguments
  muster check --engine slurm --slurm-args "-N2"     inside a step of Slurm, where limits may differ
  muster check --image nvcr/pytorch -H a,b           inside a container
  muster check -H a,b --json | jq .findings

Prints the differences between the hosts, then each finding, most severe first: the problem and its host, the symptom
in a job, and the command that fixes it. Changes nothing on any host.

  error    a job on these hosts would fail
  warning  a job may fail or run slower than it could
  note     `muster run` handles it; other launchers do not

Exit code: 0 without errors; 1 with warnings and --strict; 3 with errors; 2 for a wrong command line; 125 if Muster
itself failed.
"""


def parser() -> Parser:
    """Return the parser of `muster check`."""
    p = Parser(
        prog="muster check",
        usage="muster check [options] [SCRIPT [its arguments]]",
        description="Check hosts for problems before a run: what differs, what is wrong, and how to fix it.",
        epilog=dedent(EXAMPLES),
    )
    add_where(p)
    add_engine(p)
    add_network(p)
    what = p.add_argument_group("checks")
    option(what, "--deep", "also start ranks on the hosts, as a job would; takes longer")
    about = "a file or directory that every host must have (repeatable)"
    option(what, "--data PATH", about, action="append", default=[])
    add_env(what)
    option(what, "-m", "SCRIPT is a module, as for `python -m`", dest="module")
    option(what, "--strict", "exit with code 1 if there are warnings")
    option(what, "--json", "print JSON")
    add_debug(what)
    p.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return p


def main(argv: list[str]) -> int:
    """Check the hosts and return the exit code."""
    begin = time.monotonic()
    options = parse_options(parser(), argv, "check")
    command: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if command and not command[0]:
        raise UsageError("the name of the script is empty", hint="check the variable that should contain it")
    spec = spec_of(options, command, check=False)
    if command:
        script = find_script(spec)
        text = script.text if script is not None else ""
        # An option of the script's own that is called --data means the same as ours: every host must have it.
        refuse_misplaced(parser(), argv, command, f"{text}\n'data'")
    engine = asking_for_allocation(options)
    if engine is not None:
        return allocate(engine, options, spec, ["check", *argv], "check")
    from muster.controller.debug_log import shown

    with shown(spec.debug), lab_hosts(spec) as located:
        return check(options, located, argv, begin)


def check(options: argparse.Namespace, spec: RunSpec, argv: list[str], begin: float) -> int:
    """Run the checks and print the report."""
    import asyncio
    import json

    from muster.check.checks import QUICK
    from muster.check.definition import judge_all, load
    from muster.check.findings_report import Report, as_data, facts, render
    from muster.check.here import data_in, forget_if_passed, known_bad, looks_like_path, paths_in, wanted_by
    from muster.check.quick import quick
    from muster.check.session import CONNECT_TIMEOUT

    # ssh uses the first value it is given.
    prepared = prepare(replace(spec, ssh=(*spec.ssh, f"-oConnectTimeout={CONNECT_TIMEOUT}")), history=False)
    job = prepared.job
    checks = load(QUICK)
    of_script = data_in(spec.args)
    data = [*options.data, *filter(looks_like_path, of_script)]
    wanted = wanted_by(job, ["check", *argv], data=data, expected=[*of_script, *paths_in(spec.args)])
    wanted = replace(wanted, known_bad=known_bad(job, say))
    folder = make_job_folder(job.id)
    for sentence in prepared.notes:
        say(sentence)
    try:
        cluster = asyncio.run(quick(job, prepared.launch, checks, wanted, folder=folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = judge_all(checks, cluster)
    known = facts(checks, cluster)
    measured: dict[str, dict[str, str]] = {}
    if options.deep:
        if any(finding.severity == "error" for finding in found):
            say("--deep started no ranks; fix the errors first")
        else:
            deeper, measured = deep(replace(spec, quiet=options.json, debug=False), cluster)
            found, forgotten = forget_if_passed(job, wanted, worst_first([*deeper, *found]))
            for sentence in forgotten:
                say(sentence)
    report = Report(
        findings=found,
        facts=known,
        measured=measured,
        cluster=cluster,
        hosts=len(job.hosts),
        seconds=time.monotonic() - begin,
    )
    if options.json:
        print(json.dumps(as_data(report), indent=1))
    else:
        sys.stdout.write(clean_for(sys.stdout, render(report)))
    severities = {finding.severity for finding in found}
    if "error" in severities:
        return EXIT_ERRORS
    return EXIT_WARNINGS if options.strict and "warning" in severities else 0


def say(sentence: str) -> None:
    """Print a line beside the report."""
    print(clean_for(sys.stderr, f"muster: {sentence}"), file=sys.stderr)


def deep(spec: RunSpec, cluster: Cluster) -> tuple[list[Finding], dict[str, dict[str, str]]]:
    """Run ranks on the hosts, as a job would; return their findings and measurements."""
    from muster.api.execution import execute, in_foreground
    from muster.check.deep.judge_ranks import judge, table, with_names
    from muster.check.deep.measure import deep_spec, read_results
    from muster.job import job_folder

    with deep_spec(spec) as ranks:
        prepared = prepare(ranks, history=False)
        verdict = execute(prepared, in_foreground, summary=False)
    if not verdict.ok:
        failure = f"{verdict.sentence}\n{verdict.detail}".strip()
        what = f"the ranks of the deep check failed: {failure}"
        return [Finding(severity="error", hosts=(), what=what, symptom="your job fails the same way", check="deep")], {}
    folder = job_folder(prepared.job.id)
    results = with_names(read_results(folder), labels(prepared.job.hosts))
    shutil.rmtree(folder, ignore_errors=True)
    return list(judge(cluster, results)), table(results)

"""`muster keep`: hosts that stay ready for the next run."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time

from muster.api.arguments import Parser, option, seconds
from muster.api.run_options import add_env, add_where, parse_options, spec_of
from muster.errors import UsageError

_USUAL = 1800.0
"""Seconds that hosts stay ready if nothing else is given."""

EPILOG = """\
examples:
  muster run --keep 30m train.py    run a script, and keep its hosts ready for 30 minutes after each run
  muster run train.py               the next run: it reuses them and starts in a third of a second
  muster keep                       list the hosts that are kept ready, and how much memory that takes
  muster keep -H gpu[01-04]         make hosts ready without running anything
  muster keep --end                 end all of it now; -H limits this to some hosts

A kept host has one agent and one zygote, a process that has imported torch. It holds no GPU memory and no user code.
If torch, Python or a preloaded module changes, the next run starts a new zygote and says so. Everything ends when
its time is over, with `muster keep --end`, and within 25 s if the process that keeps it is killed.

Exit code: 0; 2 for a wrong command line; 125 if a host could not be made ready.
"""


def parser() -> Parser:
    """Return the parser of `muster keep`."""
    p = Parser(prog="muster keep", description="List, make or end hosts that stay ready for a run.", epilog=EPILOG)
    add_where(p)
    what = p.add_argument_group("what to keep")
    option(
        what, "--for DURATION", "how long hosts stay ready without a run (default: 30m)", type=seconds, dest="length"
    )
    about = "import MODULE once per host, in addition to torch (repeatable)"
    option(what, "--preload MODULE", about, action="append", default=[])
    add_env(what)
    option(p, "--end", "end what is kept, on all hosts or on those of -H")
    option(p, "--json", "list the kept hosts as JSON")
    p.set_defaults(module=None)
    return p


def main(argv: list[str]) -> int:
    """List kept hosts, end them, or make hosts ready."""
    p = parser()
    options = parse_options(p, argv, "keep")
    where = [name for name in ("hosts", "hostfile", "lab", "pods") if name in options.typed]
    if options.end:
        return _end([host.name for host in spec_of(options, []).hosts or ()] if where else [])
    if where:
        return _make_ready(options)
    idle = sorted(options.typed - {"json"})
    if idle:
        name = {"length": "for"}.get(idle[0], idle[0].replace("_", "-"))
        raise UsageError(f"--{name} needs hosts", hint=f"for example `muster keep -H localhost --{name} ...`")
    return _list(as_json=options.json)


def _make_ready(options: argparse.Namespace) -> int:
    from muster.api.prepared import prepare
    from muster.api.ready_hosts import make_ready
    from muster.output.screen import Screen

    length = options.length if options.length is not None else _USUAL
    prepared = prepare(spec_of(options, [], check=False, keep=length))
    screen = Screen()
    try:
        make_ready(prepared, screen)
    finally:
        screen.close()
    return 0


def _end(hosts: list[str]) -> int:
    from muster.controller.keep.keep_client import end_kept
    from muster.text import names

    ended = end_kept(hosts)
    missing = [host for host in hosts if host not in [each.entry["host"] for each in ended]]
    used = [each.entry["host"] for each in ended if each.entry["job"]]
    idle = [each.entry["host"] for each in ended if not each.entry["job"]]
    if idle:
        sys.stderr.write(f"ended the kept agents on {names(idle)}\n")
    if used:
        sys.stderr.write(f"the agents on {names(used)} end with the job that uses them\n")
    if missing:
        sys.stderr.write(f"nothing is kept on {names(missing)}\n")
    elif not ended:
        sys.stderr.write("no hosts are kept\n")
    return 0


def _list(*, as_json: bool) -> int:
    from muster.controller.keep.keep_client import kept_hosts
    from muster.controller.keep.kept_text import kept_rows
    from muster.jobs.ps_text import table

    hosts = kept_hosts()
    if as_json:
        shown = ("host", "python", "torch", "begin", "idle_since", "keep", "job")
        print(json.dumps([{**{name: each.entry[name] for name in shown}, "memory": each.memory} for each in hosts]))
    elif hosts:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print("\n".join(table(kept_rows(hosts, time.time()), width)))
    else:
        sys.stderr.write("no hosts are kept; `muster run --keep 30m train.py` keeps those of a job\n")
    return 0

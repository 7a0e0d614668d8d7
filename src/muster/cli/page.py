"""`muster page`: serve a page in which a browser on this machine shows a job."""

from __future__ import annotations

import os
import sys

from muster.api.arguments import Parser, option, port

EXAMPLES = """\
examples:
  muster page                    the job that runs, or the newest
  muster page train              the job of train.py
  muster page 3f9a --port 8000   a job by the end of its id, at a port of your choice
  muster run --page train.py     from the beginning of the job

The address has a secret in it: who does not know it sees nothing. Below it there are also state.json and
metrics, the latter for Prometheus. On a machine that you have reached by ssh, forward the port to your own:
`ssh -L 8000:127.0.0.1:8000 HOST`.
"""


def main(argv: list[str]) -> int:
    """Serve the page until Ctrl-C."""
    p = Parser(
        prog="muster page",
        usage="muster page [JOB] [--port PORT]",
        description="Show a job in a browser: its ranks, their speed, their logs and what Muster found.",
        epilog=EXAMPLES,
    )
    option(p, "JOB", "its id, part of it, its script or `last`", nargs="?")
    option(p, "--port PORT", "port on 127.0.0.1 (default: a free one)", type=port, default=0)
    options = p.parse_args(argv)
    from muster.dashboard.address import address, listen, new_token
    from muster.dashboard.job_source import Source
    from muster.dashboard.server import PageServer
    from muster.jobs.job_folders import find, running_jobs, the_running_one

    job = find(options.job) if options.job else the_running_one() if running_jobs() else find("last")
    token = new_token()
    with listen(options.port) as listener, PageServer(listener, token, Source(job.folder)) as server:
        sys.stderr.write(f"muster: the page of {job.id}, until Ctrl-C\n")
        if os.environ.get("SSH_CONNECTION"):
            number = listener.getsockname()[1]
            there = f"ssh -L {number}:127.0.0.1:{number} {os.uname().nodename}"
            sys.stderr.write(f"muster: to open it on the machine you came from, type there: {there}\n")
        print(address(listener, token), flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
    return 0

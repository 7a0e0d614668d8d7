"""`muster dashboard`: serve a dashboard that shows a job in a browser on this machine."""

from __future__ import annotations

import os
import sys

from muster.api.arguments import Parser, option, port

EXAMPLES = """\
examples:
  muster dashboard                    the running job, or the newest
  muster dashboard train              the job of train.py
  muster dashboard 3f9a --port 8000   a job by the end of its id, on a port of your choice
  muster run --dashboard train.py     from the start of the job

The address contains a secret token: without it, nobody can see anything. Below the address there are also
state.json, and metrics for Prometheus. On a machine that you reached over ssh, forward the port to your own:
`ssh -L 8000:127.0.0.1:8000 HOST`.
"""


def parser() -> Parser:
    """Return the parser of `muster dashboard`."""
    p = Parser(
        prog="muster dashboard",
        usage="muster dashboard [JOB] [--port PORT]",
        description="Show a job in a browser: its ranks, their speed, their logs, and what Muster found.",
        epilog=EXAMPLES,
    )
    option(p, "JOB", "a job that `muster ps` lists (default: the newest one that runs, else the newest)", nargs="?")
    option(p, "--port PORT", "port on 127.0.0.1 (default: a free one)", type=port, default=0)
    return p


def main(argv: list[str]) -> int:
    """Serve the dashboard until Ctrl-C."""
    options = parser().parse_args(argv)
    from muster.dashboard.address import address, listen, new_token
    from muster.dashboard.job_list import JobList
    from muster.dashboard.server import DashboardServer
    from muster.jobs.job_folders import find, here, running_jobs

    job = here(find(options.job) if options.job is not None else next(iter(running_jobs()), None) or find("last"))
    token = new_token()
    with listen(options.port) as listener, DashboardServer(listener, token, JobList(job.folder)) as server:
        sys.stderr.write(f"muster: dashboard of {job.id}, Ctrl-C to stop it\n")
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

"""pbs_release_nodes: a running job gives hosts back; its script and its nodefile keep the others."""

from __future__ import annotations

import getopt
import os
import sys

import records
from surroundings import hosts
from wire import call

UNKNOWN = 15001 % 256


def main() -> int:
    options, names = getopt.getopt(sys.argv[1:], "j:a")
    given = dict(options)
    record = records.named(given.get("-j") or os.environ.get("PBS_JOBID", ""))
    if record is None:
        print("pbs_release_nodes: Unknown Job Id", file=sys.stderr)
        return UNKNOWN
    first, *sisters = hosts(record)
    released = sisters if "-a" in given else names
    if not released or not set(released) <= set(sisters):
        print(f"pbs_release_nodes: Can't free '{first}' since it's on a primary execution host", file=sys.stderr)
        return 1
    kept = [chunk for chunk in record["chunks"] if chunk["host"] not in released]
    records.change(record["id"], chunks=kept)
    for host in released:
        call(host, do="leave", job=record["id"])
    for host in [first, *sisters]:
        if host not in released:
            call(host, do="update", job=record["id"])
    return 0


sys.exit(main())

"""The data that the job reads (--data, and paths in the script's arguments) exists on every host and is the same."""

from __future__ import annotations

from muster.agent.probes import files
from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.check.fixes import copy
from muster.text import names

GONE = "FileNotFoundError on the ranks of one host, while the others wait"
NEEDED = "FileNotFoundError on every rank"
MAYBE_NEEDED = f"{NEEDED}, unless the script creates it"
IGNORE = "; ignore this if it is not a path or if the script creates it"
OTHER = "ranks see different data: a hang at the end of the epoch, or a model that does not learn"
SLOW = "the start takes minutes, or ranks hang in their first read"


def judge(cluster: Cluster) -> Findings:
    """Paths given with --data must exist; a path in the arguments may be one that the job creates."""
    found = cluster.answers(files.data)
    for path in cluster.wanted.paths:
        values = {name: answer.get(path) for name, answer in found.items()}
        have = {name: tuple(value) for name, value in values.items() if value is not None}
        explicit = path in cluster.wanted.data
        where = f"; {names(list(have))} {'has' if len(have) == 1 else 'have'} it" if have else ""
        severity = "error" if explicit else "warning"
        missing = [name for name, value in values.items() if value is None]
        if missing and not have and path not in cluster.wanted.here:
            to = "every host" if len(missing) > 1 else missing[0]
            if explicit:
                fix = Fix(say=f"check the path, or mount or copy it to {to}")
                yield Finding(severity, tuple(missing), f"{path} does not exist", NEEDED, fix, row=52)
            elif path in cluster.wanted.expected:
                fix = Fix(say=f"check the path, or mount or copy it to {to}{IGNORE}")
                yield Finding(severity, tuple(missing), f"{path} does not exist", MAYBE_NEEDED, fix, row=52)
            missing = []
        for name in missing if have or explicit or path in cluster.wanted.expected else ():
            yield Finding(severity, (name,), f"{path} does not exist{where}", GONE, _bring(cluster, name, path), row=52)
        common, others = odd_ones(have)
        for name, (kind, size, _) in others.items():
            what = f"has {size} entries" if kind == "folder" else f"is a different file ({size} bytes)"
            usual = f"{common[1]} {'entries' if common[0] == 'folder' else 'bytes'}" if common else ""
            what = f"{path} {what}; on the other hosts: {usual}"
            yield Finding("warning", (name,), what, OTHER, _bring(cluster, name, path), row=52)
    for machine in cluster.machines:
        if "data" in machine.hung:
            what = f"reading {', '.join(cluster.wanted.paths)} timed out after {CHECK.limit:.0f} s"
            fix = Fix(say="check that the file server is up; renew a stale mount with umount -l and mount")
            yield Finding("warning", (machine.name,), what, SLOW, fix, row=52)


def _bring(cluster: Cluster, host: str, path: str) -> Fix:
    if path in cluster.wanted.here and path.startswith("/"):
        return copy(cluster, host, "/", [path[1:]], say="or mount it there")
    return Fix(say=f"mount or copy it to {host}")


CHECK = Check(probe=files.data, judge=judge)

"""What the job reads is on every host, and the same: --data, and paths among the script's arguments."""

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
TO_ALL = Fix(say="mount or copy it to every host")
MAYBE_TO_ALL = Fix(say=f"{TO_ALL.say}; ignore this if it is not a path or if the script creates it")
OTHER = "ranks that see other data: a hang at the end of the epoch, or a model that does not learn"
SLOW = "a start that takes minutes, or ranks that hang in their first read"


def judge(cluster: Cluster) -> Findings:
    """What was named with --data must be there; an argument may be a path that the job makes."""
    found = cluster.answers(files.data)
    for path in cluster.wanted.paths:
        values = {name: answer.get(path) for name, answer in found.items()}
        have = {name: tuple(value) for name, value in values.items() if value is not None}
        explicit = path in cluster.wanted.data
        where = f"; {names(list(have))} {'has' if len(have) == 1 else 'have'} it" if have else ""
        severity = "error" if explicit else "warning"
        missing = [name for name, value in values.items() if value is None]
        if missing and not have and path not in cluster.wanted.here:
            if explicit:
                yield Finding(severity, tuple(missing), f"{path} is not there", NEEDED, TO_ALL, row=52)
            elif path in cluster.wanted.expected:
                yield Finding(severity, tuple(missing), f"{path} is not there", MAYBE_NEEDED, MAYBE_TO_ALL, row=52)
            missing = []
        for name in missing if have or explicit or path in cluster.wanted.expected else ():
            yield Finding(severity, (name,), f"{path} is not there{where}", GONE, _bring(cluster, name, path), row=52)
        common, others = odd_ones(have)
        for name, (kind, size, _) in others.items():
            what = f"has {size} entries" if kind == "folder" else f"is another file ({size} bytes)"
            usual = f"{common[1]} {'entries' if common[0] == 'folder' else 'bytes'}" if common else ""
            what = f"{path} {what} there, and {usual} on the others"
            yield Finding("warning", (name,), what, OTHER, _bring(cluster, name, path), row=52)
    for machine in cluster.machines:
        if "data" in machine.hung:
            what = f"{', '.join(cluster.wanted.paths)} cannot be read within {CHECK.limit:.0f} s"
            fix = Fix(say="is its server up? a stale mount is renewed by: umount -l, mount")
            yield Finding("warning", (machine.name,), what, SLOW, fix, row=52)


def _bring(cluster: Cluster, host: str, path: str) -> Fix:
    if path in cluster.wanted.here and path.startswith("/"):
        return copy(cluster, host, "/", [path[1:]], say="or mount it there")
    return Fix(say=f"mount or copy it to {host}")


CHECK = Check(probe=files.data, judge=judge)

"""Every host has the same code as this machine."""

from __future__ import annotations

from muster.agent.probes import files
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings
from muster.check.fixes import copy
from muster.text import count, names

SYMPTOM = "ranks call different collectives or shapes: a hang, or `Received data size doesn't match`"


def judge(cluster: Cluster) -> Findings:
    """A different script is an error, because `muster run` refuses it; a file it may import is a warning."""
    wanted = cluster.wanted
    if not wanted.script or wanted.sync:
        return
    for name, there in cluster.answers(files.same_code).items():
        other = [path for path, digest in wanted.code.items() if there["files"].get(path) != list(digest)]
        if not other:
            continue
        missing = [path for path in other if there["files"].get(path) is None]
        if not there["folder"]:
            what = f"directory {wanted.cwd} does not exist"
        elif len(missing) == len(other):
            what = f"{_files(missing)} {'do' if len(missing) > 1 else 'does'} not exist in {wanted.cwd}"
        else:
            what = f"{_files(other)} in {wanted.cwd} {'differ' if len(other) > 1 else 'differs'} from this machine"
        fix = copy(cluster, name, wanted.cwd, other, say="`muster run --sync` sends this directory with every job")
        yield Finding("error" if wanted.script in other else "warning", (name,), what, SYMPTOM, fix, row=24)


def _files(paths: list[str]) -> str:
    return f"{count(len(paths), 'file')} ({names(paths)})" if len(paths) > 1 else paths[0]


CHECK = Check(probe=files.same_code, judge=judge)

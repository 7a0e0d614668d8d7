"""Every host has the code that is here."""

from __future__ import annotations

from muster.agent.probes import files
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings
from muster.check.fixes import copy
from muster.text import count, names

SYMPTOM = "ranks call other collectives or send other shapes: a hang, or `Received data size doesn't match`"


def judge(cluster: Cluster) -> Findings:
    """The script itself is an error, as `muster run` refuses it; what it may import a warning."""
    wanted = cluster.wanted
    if not wanted.script or wanted.sync:
        return
    for name, there in cluster.answers(files.same_code).items():
        other = [path for path, digest in wanted.code.items() if there["files"].get(path) != list(digest)]
        if not other:
            continue
        missing = [path for path in other if there["files"].get(path) is None]
        if not there["folder"]:
            what = f"there is no folder {wanted.cwd}"
        elif len(missing) == len(other):
            what = f"{_files(missing)} not there" if len(missing) > 1 else f"{missing[0]} is not there"
        else:
            what = f"{_files(other)} not as here" if len(other) > 1 else f"{other[0]} differs from the one here"
        if there["folder"]:
            what = f"{what} (in {wanted.cwd})"
        fix = copy(cluster, name, wanted.cwd, other, say="`muster run --sync` sends this folder with every job")
        yield Finding("error" if wanted.script in other else "warning", (name,), what, SYMPTOM, fix, row=24)


def _files(paths: list[str]) -> str:
    return f"{count(len(paths), 'file')} ({names(paths)}) are" if len(paths) > 1 else f"{paths[0]} is"


CHECK = Check(probe=files.same_code, judge=judge)

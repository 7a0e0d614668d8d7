"""No file beside the script hides a module that torch needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Fix

SYMPTOM = (
    "cannot import name 'GenericAlias' from partially initialized module 'types', or an import that makes no sense"
)


def probe(ask: dict[str, Any]) -> list[str]:
    """Ask one host."""
    import os
    import sys

    # Names that people give their own files, and that nothing imports while torch is loaded.
    harmless = {"antigravity", "idlelib", "lib2to3", "test", "this", "tkinter", "turtle", "turtledemo"}
    known = set(getattr(sys, "stdlib_module_names", sys.builtin_module_names)) - harmless
    known |= {"torch", "numpy"}
    folder = os.path.dirname(os.path.join(str(ask["cwd"]), str(ask["script"])))
    found: list[str] = []
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return []
    for entry in entries:
        stem = entry[:-3] if entry.endswith(".py") else entry
        package = os.path.exists(os.path.join(folder, entry, "__init__.py"))
        if stem in known and (entry.endswith(".py") or package):
            found.append(os.path.join(folder, entry))
    return found


def judge(cluster: Cluster) -> Iterator[Finding]:
    """Not every such file does harm, so it is a warning."""
    for name, paths in cluster.answers("shadow").items():
        for path in paths:
            folder, _, entry = path.rpartition("/")
            module = entry.partition(".")[0]
            # row 25
            yield Finding(
                severity="warning",
                hosts=(name,),
                what=f"{path} hides Python's own module `{module}`"
                if module not in ("torch", "numpy")
                else f"{path} hides {module}",
                symptom=SYMPTOM,
                fix=Fix(command=f"mv {path} {folder}/my_{entry}", on=name, say="and change who imports it"),
                row=25,
            )


CHECK = Check(probe=probe, judge=judge)

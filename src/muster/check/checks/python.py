"""Every host runs the same version of Python, and torch is installed there."""

from __future__ import annotations

from muster.agent.probes import python_install
from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

NO_TORCH = (
    "ModuleNotFoundError: No module named 'torch' on that host while the other ranks wait, "
    "or: torchrun: command not found"
)
OTHER = "one host cannot read pickles or checkpoints of another, and package versions differ"


def judge(cluster: Cluster) -> Findings:
    """A missing torch is an error, a different version of Python a warning."""
    pythons = cluster.answers(python_install.python)
    for name, python in pythons.items():
        if not python["torch"] and cluster.wanted.torch:
            what = f"torch is not installed in {python['executable']}"
            yield Finding("error", (name,), what, NO_TORCH, _fix(cluster, name, pythons), row=22)
    common, others = odd_ones({name: python["version"] for name, python in pythons.items()})
    for name, version in others.items():
        what = f"Python is {version} ({pythons[name]['executable']}); the other hosts have {common}"
        fix = Fix(say="choose a Python that all hosts have: `--python PATH`")
        yield Finding("warning", (name,), what, OTHER, fix, row=22)


def _fix(cluster: Cluster, name: str, pythons: dict[str, python_install.Python]) -> Fix:
    """Use a Python with torch that every host has, or install torch in the current one."""
    for path in pythons[name]["others"]:
        if all(path in (*python["others"], python["executable"]) for python in pythons.values()):
            return Fix(command=cluster.wanted.typed("--python", path), say=f"{name} has torch in {path}")
    image, others = cluster.wanted.image, pythons[name]["others"]
    there = f" (found torch in {others[0]})" if others else ""
    if image is not None:
        return Fix(say=f"use an image with torch, or choose the Python in {image} that has it: --python PATH")
    if pythons[name]["managed"]:
        return Fix(say=f"choose a Python that has torch on every host: --python PATH{there}")
    torch = next((machine.up["torch"] for machine in cluster.machines if machine.up["torch"]), "")
    version = torch and "==" + torch.partition("+")[0]
    say = f"or choose a Python that has torch: --python PATH{there}"
    return Fix(command=f"{pythons[name]['executable']} -m pip install torch{version}", on=name, say=say)


CHECK = Check(probe=python_install.python, judge=judge)

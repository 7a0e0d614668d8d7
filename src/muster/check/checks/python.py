"""Every host runs the same kind of Python, and one that has torch."""

from __future__ import annotations

from muster.agent.probes import python_install
from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

NO_TORCH = (
    "ModuleNotFoundError: No module named 'torch' there, while the other ranks wait; or: torchrun: command not found"
)
OTHER = "pickles, checkpoints or data loaders of one host cannot be read by another; packages differ too"


def judge(cluster: Cluster) -> Findings:
    """No torch is an error; another version of Python a warning."""
    pythons = cluster.answers(python_install.python)
    for name, python in pythons.items():
        if not python["torch"] and cluster.wanted.torch:
            what = f"its Python, {python['executable']}, has no torch"
            yield Finding("error", (name,), what, NO_TORCH, _fix(cluster, name, pythons), row=22)
    common, others = odd_ones({name: python["version"] for name, python in pythons.items()})
    for name, version in others.items():
        what = f"it runs Python {version} ({pythons[name]['executable']}), the others {common}"
        fix = Fix(say="name one Python that all hosts have: `--python PATH`")
        yield Finding("warning", (name,), what, OTHER, fix, row=22)


def _fix(cluster: Cluster, name: str, pythons: dict[str, python_install.Python]) -> Fix:
    """A Python with torch that every host has, or torch for the one in use."""
    for path in pythons[name]["others"]:
        if all(path in (*python["others"], python["executable"]) for python in pythons.values()):
            return Fix(command=cluster.wanted.typed("--python", path), say=f"{name} has torch in {path}")
    image, others = cluster.wanted.image, pythons[name]["others"]
    there = f"; it has torch in {others[0]}" if others else ""
    if image is not None:
        return Fix(say=f"take an image that has torch, or name the Python in {image} that has it: --python")
    if pythons[name]["managed"]:
        return Fix(say=f"name a Python that has it on every host with `--python PATH`{there}")
    torch = next((machine.up["torch"] for machine in cluster.machines if machine.up["torch"]), "")
    version = torch and "==" + torch.partition("+")[0]
    say = f"or name the Python that has it with `--python PATH`{there}"
    return Fix(command=f"{pythons[name]['executable']} -m pip install torch{version}", on=name, say=say)


CHECK = Check(probe=python_install.python, judge=judge)

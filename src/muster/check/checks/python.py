"""Every host runs the same kind of Python, and one that has torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Fix

NO_TORCH = (
    "ModuleNotFoundError: No module named 'torch' there, while the other ranks wait; or: torchrun: command not found"
)
OTHER = "pickles, checkpoints or data loaders of one host cannot be read by another; packages differ too"


def probe(ask: dict[str, Any]) -> dict[str, Any]:
    """Ask one host: its Python, and others that have torch."""
    import glob
    import os
    import sys

    def has_torch(python: str) -> bool:
        prefix = os.path.dirname(os.path.dirname(python))
        return bool(glob.glob(os.path.join(prefix, "lib", "python3*", "site-packages", "torch", "version.py")))

    answer: dict[str, Any] = {
        "executable": sys.executable,
        "version": ".".join(map(str, sys.version_info[:2])),
        "torch": any(os.path.exists(os.path.join(path, "torch", "version.py")) for path in sys.path),
        "managed": bool(glob.glob(os.path.join(sys.base_prefix, "lib", "python3*", "EXTERNALLY-MANAGED"))),
        "others": [],
    }
    found: list[str] = []
    places = ["~/.venv", "~/venv", "~/*/.venv", "~/*/venv", "~/miniconda3", "~/miniconda3/envs/*", "~/anaconda3"]
    places += ["~/anaconda3/envs/*", "~/miniforge3", "~/miniforge3/envs/*", "/opt/conda", "/opt/conda/envs/*", "/opt/*"]
    places += ["~/.pyenv/versions/*", "/usr/local", ".venv", "venv"]
    for place in places:
        found += sorted(glob.glob(os.path.join(os.path.expanduser(place), "bin", "python3")))
    if not answer["torch"]:  # what the user finds when they log in themselves, which may take a second
        import subprocess

        shell = os.environ.get("SHELL", "/bin/sh")
        argv = [shell, "-lic", "command -v python; command -v python3"]
        null = subprocess.DEVNULL
        try:
            done = subprocess.run(argv, stdin=null, stdout=subprocess.PIPE, stderr=null, timeout=2)
            lines = done.stdout.decode(errors="replace").split("\n")
            found = [line for line in lines if line.startswith("/")] + found
        except (OSError, subprocess.TimeoutExpired):
            pass
    answer["others"] = [os.path.abspath(path) for path in dict.fromkeys(found) if has_torch(os.path.abspath(path))][:8]
    return answer


def judge(cluster: Cluster) -> Iterator[Finding]:
    """No torch is an error; another version of Python a warning."""
    pythons = cluster.answers("python")
    for name, python in pythons.items():
        if not python["torch"] and cluster.wanted.torch:
            # row 22
            yield Finding(
                severity="error",
                hosts=(name,),
                what=f"its Python, {python['executable']}, has no torch",
                symptom=NO_TORCH,
                fix=_fix(cluster, name, pythons),
                row=22,
            )
    common, others = odd_ones({name: python["version"] for name, python in pythons.items()})
    for name, version in others.items():
        yield Finding(
            severity="warning",
            hosts=(name,),
            what=f"it runs Python {version} ({pythons[name]['executable']}), the others {common}",
            symptom=OTHER,
            fix=Fix(say="name one Python that all hosts have: `--python PATH`"),
            row=22,
        )


def _fix(cluster: Cluster, name: str, pythons: dict[str, Any]) -> Fix:
    """A Python with torch that every host has, or torch for the one in use."""
    for path in pythons[name]["others"]:
        if all(path in (*python["others"], python["executable"]) for python in pythons.values()):
            return Fix(command=cluster.wanted.typed("--python", path), say=f"{name} has torch in {path}")
    torch = next((machine.up["torch"] for machine in cluster.machines if machine.up["torch"]), "")
    there = f"; it has torch in {pythons[name]['others'][0]}" if pythons[name]["others"] else ""
    if cluster.wanted.image is not None:
        return Fix(
            say=f"take an image that has torch, or name the Python in {cluster.wanted.image} that has it: --python"
        )
    if pythons[name]["managed"]:
        return Fix(say=f"name a Python that has it on every host with `--python PATH`{there}")
    return Fix(
        command=f"{pythons[name]['executable']} -m pip install torch{torch and '==' + torch.partition('+')[0]}",
        on=name,
        say=f"or name the Python that has it with `--python PATH`{there}",
    )


CHECK = Check(probe=probe, judge=judge)

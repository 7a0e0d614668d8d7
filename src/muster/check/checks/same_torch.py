"""Every host has the same torch, CUDA, NCCL and driver, compared by content and not only by version string."""

from __future__ import annotations

from muster.agent.probes import python_install
from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.text import count

HANG = "a hang at the first barrier, or ncclInvalidUsage / `NCCL version mismatch`"
DRIVER = "The NVIDIA driver on your system is too old, or: CUDA error: system has unsupported display driver"
NO_CUDA = "Torch not compiled with CUDA enabled, or ranks silently train on the CPU"

NEEDS = {"11": 450, "12": 525, "13": 580}
"""Minimum driver for each major version of CUDA (NVIDIA's minor version compatibility table)."""


def judge(cluster: Cluster) -> Findings:
    """A different version is an error, a different build of the same version a warning."""
    found = {name: torch for name, torch in cluster.answers(python_install.torch).items() if torch is not None}
    yield from _versions(found)
    drivers = {name: _driver(cluster, name, torch) for name, torch in found.items()}
    too_old: set[str] = set()
    for name, torch in found.items():
        gpus, driver = cluster.machine(name).up["gpus"], drivers[name]
        if gpus and not torch["cuda"]:
            what = f"torch {torch['version']} is built without CUDA and cannot use the {count(gpus, 'GPU')}"
            fix = Fix(command=f"{torch['python']} -m pip install --force-reinstall torch", on=name)
            yield Finding("warning", (name,), what, NO_CUDA, fix, row=23)
        least = NEEDS.get(torch["cuda"].partition(".")[0])
        if least and driver and int(driver.partition(".")[0]) < least:
            too_old.add(name)
            what = f"the driver ({driver}) is too old for CUDA {torch['cuda']} in torch: {least} or newer is required"
            fix = Fix(say="install a newer driver, or install torch built for an older CUDA on all hosts")
            yield Finding("error", (name,), what, DRIVER, fix, row=23)
        for path in torch["stray_nccl"]:
            what = f"LD_LIBRARY_PATH puts {path} before torch's own NCCL {torch['nccl']}"
            fix = Fix(say=f"remove {path.rpartition('/')[0]} from LD_LIBRARY_PATH on {name}")
            yield Finding("warning", (name,), what, HANG, fix, row=23)
    common, others = odd_ones({name: driver for name, driver in drivers.items() if driver and name not in too_old})
    for name, driver in others.items():
        what = f"the NVIDIA driver is {driver}; the other hosts have {common}"
        yield Finding("warning", (name,), what, HANG, Fix(say="install the same driver on all hosts"), row=23)


def _versions(found: dict[str, python_install.Torch]) -> Findings:
    common, others = odd_ones({name: torch["version"] for name, torch in found.items()})
    for name, version in others.items():
        what = f"torch is {version}; the other hosts have {common}"
        yield Finding("error", (name,), what, HANG, install(found[name]["python"], common or "", name), row=23)
    alike = {name: torch for name, torch in found.items() if name not in others}
    listed = all(torch["record"] for torch in alike.values())  # conda keeps no such list
    built = {
        name: repr([torch["git"], torch["libraries"], torch["record"] if listed else 0])
        for name, torch in alike.items()
    }
    usual, strange = odd_ones(built)
    for name in strange:
        usual_one = next(torch for host, torch in alike.items() if built[host] == usual)
        what = f"torch is {common} as on the other hosts, but {_difference(alike[name], usual_one)}"
        yield Finding("warning", (name,), what, HANG, install(alike[name]["python"], common or "", name), row=23)


def _difference(torch: python_install.Torch, usual: python_install.Torch) -> str:
    differ = [name for name in torch["libraries"] if torch["libraries"][name] != usual["libraries"][name]]
    if differ == ["libnccl.so.2"]:
        return f"its NCCL is {torch['nccl']}, not {usual['nccl']}"
    if differ:
        return f"{differ[0]} is a different file"
    if torch["git"] != usual["git"]:
        return "it was built from a different commit"
    return "its installed files differ"


def _driver(cluster: Cluster, name: str, torch: python_install.Torch) -> str:
    """The driver version from nvidia-smi, or else from the kernel module."""
    return next((gpu["driver"] for gpu in cluster.gpus(name) if gpu["driver"]), torch["driver"])


def install(python: str, version: str, name: str) -> Fix:
    """Install a version of torch; those with a `+` come from PyTorch's own index."""
    plain, _, local = version.partition("+")
    index = f" --index-url https://download.pytorch.org/whl/{local}" if local else ""
    return Fix(command=f"{python} -m pip install --force-reinstall torch=={plain}{index}", on=name)


def table(answer: python_install.Torch | None) -> dict[str, str]:
    """Facts for the report."""
    if answer is None:
        return {"torch": "none"}
    facts = {"torch": answer["version"], "CUDA": answer["cuda"], "NCCL": answer["nccl"]}
    return {name: value for name, value in facts.items() if value}


CHECK = Check(probe=python_install.torch, judge=judge, table=table)

"""Every host loads the same torch, CUDA, NCCL and driver: compared by content, for a version string proves little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Fix

HANG = "a hang at the first barrier, or ncclInvalidUsage / `NCCL version mismatch`"
DRIVER = "The NVIDIA driver on your system is too old, or: CUDA error: system has unsupported display driver"
NO_CUDA = "Torch not compiled with CUDA enabled; or ranks that quietly train on the CPU"

NEEDS = {"11": 450, "12": 525, "13": 580}
"""The oldest driver for each major version of CUDA (NVIDIA's table of minor version compatibility)."""


def probe(ask: dict[str, Any]) -> dict[str, Any] | None:
    """Ask one host; None where there is no torch."""
    import glob
    import os
    import re
    import sys
    import zlib

    def identity(path: str) -> list[Any] | None:
        """Size and build id of a library: its first page tells both without reading gigabytes."""
        try:
            with open(path, "rb") as file:
                head = file.read(8192)
                size = file.seek(0, 2)
        except OSError:
            return None
        mark = head.find(b"\x14\0\0\0\x03\0\0\0GNU\0")
        return [size, head[mark + 12 : mark + 32].hex() if mark >= 0 else ""]

    site = next((path for path in sys.path if os.path.exists(os.path.join(path, "torch", "version.py"))), None)
    if site is None:
        return None
    with open(os.path.join(site, "torch", "version.py")) as file:
        text = file.read()
    words = dict(re.findall(r"^(\w+)(?:: [^=]*)? = ['\"]([^'\"]*)['\"]", text, re.MULTILINE))
    record = 0
    for path in glob.glob(os.path.join(site, "torch-*.dist-info", "RECORD")):
        with open(path, "rb") as file:
            for line in file:  # not what an installer adds: byte code, its own notes, scripts with a path in them
                if b".pyc," not in line and b".dist-info/" not in line and not line.startswith(b"../"):
                    record ^= zlib.crc32(line)
    libraries: dict[str, Any] = {}
    for name in ("libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so", "libc10.so"):
        libraries[name] = identity(os.path.join(site, "torch", "lib", name))
    bundled = os.path.join(site, "nvidia", "nccl", "lib", "libnccl.so.2")
    nccl = re.findall(r"nvidia_nccl_\w+-([\d.]+)\.dist-info", " ".join(os.listdir(site)))
    libraries["libnccl.so.2"] = identity(bundled)
    strays: list[str] = []
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        path = os.path.join(folder, "libnccl.so.2")
        if folder and os.path.exists(path) and identity(path) != libraries["libnccl.so.2"]:
            strays.append(path)
    driver = ""
    try:
        with open("/proc/driver/nvidia/version") as file:
            driver = (re.findall(r"Kernel Module\D*([\d.]+)", file.read()) or [""])[0]
    except OSError:
        pass
    return {
        "version": words.get("__version__", ""),
        "cuda": words.get("cuda") or words.get("hip", ""),
        "git": words.get("git_version", ""),
        "record": record,
        "libraries": libraries,
        "nccl": nccl[0] if nccl else "",
        "stray_nccl": strays,
        "driver": driver,
        "site": site,
        "python": sys.executable,
    }


def judge(cluster: Cluster) -> Iterator[Finding]:
    """Another version is an error, another build of the same version a warning."""
    found = {name: torch for name, torch in cluster.answers("same_torch").items() if torch is not None}
    yield from _versions(found)
    too_old: set[str] = set()
    for name, torch in found.items():
        gpus = cluster.machine(name).up["gpus"]
        driver = _driver(cluster, name, torch)
        if gpus and not torch["cuda"]:
            yield Finding(
                severity="warning",
                hosts=(name,),
                what=f"it has {gpus} GPUs, and its torch, {torch['version']}, cannot use them",
                symptom=NO_CUDA,
                fix=Fix(command=f"{torch['python']} -m pip install --force-reinstall torch", on=name),
                row=23,
            )
        least = NEEDS.get(torch["cuda"].partition(".")[0])
        if least and driver and int(driver.partition(".")[0]) < least:
            too_old.add(name)
            yield Finding(
                severity="error",
                hosts=(name,),
                what=f"its driver, {driver}, is too old for the CUDA {torch['cuda']} of its torch: {least} is needed",
                symptom=DRIVER,
                fix=Fix(say="install a newer driver there, or a torch built for an older CUDA everywhere"),
                row=23,
            )
        for path in torch["stray_nccl"]:
            yield Finding(
                severity="warning",
                hosts=(name,),
                what=f"LD_LIBRARY_PATH puts {path} before torch's own NCCL {torch['nccl']}",
                symptom=HANG,
                fix=Fix(say=f"take {path.rpartition('/')[0]} out of LD_LIBRARY_PATH on {name}"),
                row=23,
            )
    drivers = {name: _driver(cluster, name, torch) for name, torch in found.items() if name not in too_old}
    common, others = odd_ones({name: driver for name, driver in drivers.items() if driver})
    for name, driver in others.items():
        yield Finding(
            severity="warning",
            hosts=(name,),
            what=f"its NVIDIA driver is {driver}, that of the others {common}",
            symptom=HANG,
            fix=Fix(say="install the same driver on all hosts"),
            row=23,
        )


def _versions(found: dict[str, Any]) -> Iterator[Finding]:
    common, others = odd_ones({name: str(torch["version"]) for name, torch in found.items()})
    for name, version in others.items():
        # row 23
        yield Finding(
            severity="error",
            hosts=(name,),
            what=f"its torch is {version}, that of the others {common}",
            symptom=HANG,
            fix=install(found[name]["python"], common or "", name),
            row=23,
        )
    alike = {name: torch for name, torch in found.items() if name not in others}
    listed = all(torch["record"] for torch in alike.values())  # conda keeps no such list
    built = {
        name: repr([torch["git"], torch["libraries"], torch["record"] if listed else 0])
        for name, torch in alike.items()
    }
    usual, strange = odd_ones(built)
    for name in strange:
        usual_one = next(torch for host, torch in alike.items() if built[host] == usual)
        what = f"its torch calls itself {common} like the others', but {_difference(alike[name], usual_one)}"
        yield Finding(
            severity="warning",
            hosts=(name,),
            what=what,
            symptom=HANG,
            fix=install(alike[name]["python"], common or "", name),
            row=23,
        )


def _difference(torch: dict[str, Any], usual: dict[str, Any]) -> str:
    differ = [name for name in torch["libraries"] if torch["libraries"][name] != usual["libraries"][name]]
    if differ == ["libnccl.so.2"]:
        return f"its NCCL is {torch['nccl']}, not {usual['nccl']}"
    if differ:
        return f"{differ[0]} is another file"
    if torch["git"] != usual["git"]:
        return "it was built from other source"
    return "other files were installed"


def _driver(cluster: Cluster, name: str, torch: dict[str, Any]) -> str:
    """What the GPUs say, else the kernel module."""
    gpus: list[dict[str, Any]] = cluster.answer("gpus", name).get("gpus", [])
    return next((gpu["driver"] for gpu in gpus if gpu["driver"]), torch["driver"])


def install(python: str, version: str, name: str) -> Fix:
    """Put a version of torch there; those with a `+` come from torch's own index."""
    plain, _, local = version.partition("+")
    index = f" --index-url https://download.pytorch.org/whl/{local}" if local else ""
    return Fix(command=f"{python} -m pip install --force-reinstall torch=={plain}{index}", on=name)


def table(answer: dict[str, Any] | None) -> dict[str, str]:
    """Facts for people."""
    if answer is None:
        return {"torch": "none"}
    facts = {"torch": answer["version"], "CUDA": answer["cuda"], "NCCL": answer["nccl"]}
    return {name: value for name, value in facts.items() if value}


CHECK = Check(probe=probe, judge=judge, table=table)

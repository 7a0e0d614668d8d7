"""Whether a kept agent can serve a run. Pure, except for the functions that look at this process."""

from __future__ import annotations

import hashlib
import os
import resource
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster import agent, rank, shared
from muster.agent import probes
from muster.controller.keep.messages import Entry, Gone
from muster.controller.links.open_files import usual_soft_limit
from muster.engines.engine import Launch, StartCommand
from muster.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Here:
    """What an agent that this process starts gets from it."""

    stamp: str
    terms: Mapping[str, str]

    @classmethod
    def now(cls) -> Here:
        """As it is in this process."""
        return cls(stamp=_stamp(), terms=_terms())


def why_not_kept(spec: RunSpec, launch: Launch) -> str:
    """Why the agents of a run cannot be kept; empty if they can."""
    if spec.lab:
        return "the hosts of --lab exist only for this job"
    if launch.name not in ("local", "ssh"):
        return f"--engine {launch.name} ends all processes with its job"
    if any(command.box is not None for command in launch.commands):
        return "a container ends with its job"
    return ""


def fitting(
    commands: Sequence[StartCommand], entries: Iterable[Entry], gone: Iterable[Gone], here: Here
) -> tuple[dict[str, Entry], dict[str, str]]:
    """The agents to use, and the reasons why others are not used, each by the name of the host."""
    found: dict[str, Entry] = {}
    reasons: dict[str, str] = {}
    for command in commands:
        name = command.agents[0].name
        why = ""
        for entry in entries:
            is_same_command = tuple(entry["argv"]) == command.argv
            if not is_same_command and entry["host"] != name:
                continue
            why = why or _why_unfit(entry, here, is_same_command=is_same_command, is_local=not command.remote)
            if is_same_command and not _why_unfit(entry, here, is_same_command=True, is_local=not command.remote):
                found[name], why = entry, ""
                break
        lost = next((one["why"] for one in gone if tuple(one["argv"]) == command.argv), "")
        if name not in found and (why or lost):
            reasons[name] = why or f"it was lost while idle ({lost})"
    return found, reasons


def _why_unfit(entry: Entry, here: Here, *, is_same_command: bool, is_local: bool) -> str:
    if entry["job"]:
        return f"job {entry['job']} uses it"
    if not is_same_command:
        return "it was started with another Python, user, port or ssh"
    if entry["stamp"] != here.stamp:
        return "Muster has changed since it was started"
    if is_local:
        other = next((name for name, value in here.terms.items() if entry["terms"].get(name) != value), "")
        if other:
            return f"it was started with another {other}"
    return ""


def _stamp() -> str:
    """Changes with every file of the code that agents run."""
    found = hashlib.sha256(sys.version.encode())
    for package in (agent, probes, rank, shared):
        for folder in package.__path__:
            try:
                files = sorted(os.scandir(folder), key=lambda file: file.name)
            except OSError:
                continue  # in a zip file, whose path changes with its version
            for file in files:
                if file.name.endswith(".py"):
                    stat = file.stat()
                    found.update(f"{file.path} {stat.st_size} {stat.st_mtime_ns}".encode())
    return found.hexdigest()[:16]


def _terms() -> dict[str, str]:
    """What a child inherits from this process besides its environment, and cannot change back."""
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in names}
    limits["RLIMIT_NOFILE"] = usual_soft_limit(), limits["RLIMIT_NOFILE"][1]
    mask = os.umask(0o077)
    os.umask(mask)
    terms = {
        **{f"ulimit ({name[7:].lower()})": f"{soft} {hard}" for name, (soft, hard) in limits.items()},
        "umask": f"{mask:o}",
        "priority": str(os.nice(0)),
        "group": f"{os.getegid()} {sorted(os.getgroups())}",
    }
    if sys.platform == "linux":
        terms["CPU affinity"] = str(sorted(os.sched_getaffinity(0)))
    return terms

"""What the checks need to know about this machine: the code that hosts should have, and the data the job reads."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from muster.agent.code_sync import fingerprint
from muster.check.cluster_facts import Wanted
from muster.check.finding import Finding
from muster.controller.source_code import files_of
from muster.job import Job, Script
from muster.jobs import host_history
from muster.plan import labels
from muster.text import names

_MOST_FILES = 400
_MOST_BYTES = 8 << 20
"""Limits on the files that are compared: every host reads them, perhaps from one busy file server."""

_WRITTEN = re.compile(r"out|save|log|result|cache|tmp|temp|write|dump|export", re.IGNORECASE)
"""Names of options whose paths the job creates itself, often on one host only."""

_HARDWARE = frozenset({"gpus", "fabric", "rdma", "links", "disk", "deep"})
"""Checks whose warnings may be about failed hardware."""

_SUFFIXES = (".py", ".pyi", ".json", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".sh")


def wanted_by(
    job: Job,
    argv: Sequence[str],
    *,
    data: Sequence[str] = (),
    expected: Sequence[str] = (),
    torch: bool = True,
    code: bool = True,
) -> Wanted:
    """What the checks need to know about a job.

    `argv` is the command line, `data` lists paths that every host must have, and `code` enables comparing the code.
    A path among `expected` is reported even if no host has it.
    """
    spec = job.spec
    script = None if spec.sync else job.script
    paths = tuple(dict.fromkeys([*data, *expected, *paths_in(spec.args)]))
    return Wanted(
        env={**job.carried, **spec.env},
        named=spec.env,
        cwd=spec.cwd,
        script=script.path if script else "",
        code=code_here(spec.cwd, script) if code else {},
        torch=torch,
        paths=paths,
        data=tuple(data),
        expected=tuple(expected),
        here=are_here(spec.cwd, paths),
        master_addr=spec.master_addr,
        master_port=spec.master_port,
        interface=spec.interface,
        python=spec.python,
        image=spec.image,
        pods=spec.uses_pods,
        sync=spec.sync,
        argv=("muster", *argv),
    )


def code_here(cwd: str, script: Script | None) -> dict[str, list[int]]:
    """The script and the other code in its directory, each file with its size and CRC."""
    if script is None:
        return {}
    found = {script.path: list(script.digest)}
    if Path(cwd) == Path.home():  # a home directory is not a project and differs between hosts
        return found
    total = 0
    for name in sorted(name for name in files_of(cwd) if name.endswith(_SUFFIXES)):
        path = Path(cwd, name)
        try:
            total += path.stat().st_size
            if len(found) >= _MOST_FILES or total > _MOST_BYTES:
                break
            found.setdefault(name, fingerprint(path.read_bytes()))
        except OSError:
            continue  # git lists a file that was deleted
    return found


def paths_in(args: Sequence[str]) -> list[str]:
    """The arguments of a script that look like paths it reads: `/data/set`, `--data=/data/set`, `./conf.yaml`."""
    return [value for option, value in _values(args) if looks_like_path(value) and not _WRITTEN.search(option)]


def data_in(args: Sequence[str]) -> list[str]:
    """The values of a script's own `--data`, which mean what those of `muster check --data` do; URLs are left out."""
    return [value for option, value in _values(args) if option == "--data" and "://" not in value]


def looks_like_path(text: str) -> bool:
    """Whether a word can only be a path: `cifar10` and `user/set` may also be names."""
    return text.startswith(("/", "./", "../", "~/")) and "\n" not in text


def _values(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each value among a script's arguments, with the option before it or nothing."""
    before = ""
    for arg in args:
        option, equals, value = arg.partition("=") if arg.startswith("-") else (before, "", arg)
        before = arg if arg.startswith("-") and not equals else ""
        if value:
            yield option, value


def are_here(cwd: str, paths: Sequence[str]) -> tuple[str, ...]:
    """The paths that exist on this machine."""
    return tuple(path for path in paths if os.path.exists(os.path.join(cwd, os.path.expanduser(path))))


def known_bad(job: Job, warn: Callable[[str], None]) -> dict[str, tuple[str, str]]:
    """What earlier jobs learned about the hosts of a job, by name: the host as typed, and why it counts as bad."""
    if job.spec.lab:
        return {}
    bad = host_history.bad_among(job.hosts, host_history.read(warn), time.time())
    shown = dict(zip(job.hosts, labels(job.hosts), strict=True))
    return {shown[host]: (host_history.key_of(host), why) for host, why in bad.items()}


def forget_if_passed(job: Job, wanted: Wanted, found: Sequence[Finding]) -> tuple[list[Finding], list[str]]:
    """After a deep check, forget the history of hosts that passed; returns the other findings, and what was forgotten.

    A host passed without an error and without a warning about its GPUs, disks or links.
    """
    serious = [
        one for one in found if one.severity == "error" or (one.severity == "warning" and one.check in _HARDWARE)
    ]
    if any(not one.hosts for one in serious):
        return list(found), []  # it may be any host
    blamed = {host for one in serious for host in one.hosts}
    passed = [name for name in wanted.known_bad if name not in blamed]
    if not passed:
        return list(found), []
    hosts = dict(zip(labels(job.hosts), job.hosts, strict=True))
    try:
        host_history.forget(hosts[name] for name in passed)
    except OSError as error:
        return list(found), [f"could not forget the history of {names(passed)} ({error.strerror})"]
    lines = [f"{name} passed, so its history is forgotten: {wanted.known_bad[name][1]}" for name in passed]
    kept = [one for one in found if one.check != "earlier_jobs" or one.hosts[0] not in passed]
    return kept, lines

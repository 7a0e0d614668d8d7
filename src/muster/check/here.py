"""What the checks need to know about this machine: the code that hosts should have, and the data the job reads."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from muster.agent.code_sync import fingerprint
from muster.check.cluster_facts import Wanted
from muster.controller.source_code import files_of
from muster.job import Job, Script

_MOST_FILES = 400
_MOST_BYTES = 8 << 20
"""Limits on the files that are compared: every host reads them, perhaps from one busy file server."""

_WRITTEN = re.compile(r"out|save|log|result|cache|tmp|temp|write|dump|export", re.IGNORECASE)
"""Names of options whose paths the job creates itself, often on one host only."""

_SUFFIXES = (".py", ".pyi", ".json", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".sh")


def wanted_by(
    job: Job, argv: Sequence[str], *, data: Sequence[str] = (), torch: bool = True, code: bool = True
) -> Wanted:
    """What the checks need to know about a job.

    `argv` is the command line, `data` lists paths that every host must have, and `code` enables comparing the code.
    """
    spec = job.spec
    script = None if spec.sync else job.script
    paths = tuple(dict.fromkeys([*data, *paths_in(spec.args)]))
    return Wanted(
        env={**job.carried, **spec.env},
        named=spec.env,
        cwd=spec.cwd,
        script=script.path if script else "",
        code=code_here(spec.cwd, script) if code else {},
        torch=torch,
        paths=paths,
        data=tuple(data),
        here=are_here(spec.cwd, paths),
        master_addr=spec.master_addr,
        master_port=spec.master_port,
        interface=spec.interface,
        python=spec.python,
        image=spec.image,
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
    found: list[str] = []
    before = ""
    for arg in args:
        option, equals, value = arg.partition("=") if arg.startswith("-") else (before, "", arg)
        before = arg if arg.startswith("-") and not equals else ""
        if value.startswith(("/", "./", "../", "~/")) and "\n" not in value and not _WRITTEN.search(option):
            found.append(value)
    return found


def are_here(cwd: str, paths: Sequence[str]) -> tuple[str, ...]:
    """The paths that exist on this machine."""
    return tuple(path for path in paths if os.path.exists(os.path.join(cwd, os.path.expanduser(path))))

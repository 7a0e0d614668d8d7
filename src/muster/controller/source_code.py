"""The user's code on this machine: the fingerprint of the script, and the archive for --sync."""

from __future__ import annotations

import io
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from muster.agent.code_sync import fingerprint
from muster.errors import UsageError
from muster.job import Script
from muster.spec import RunSpec
from muster.text import cut
from muster.user_file import read_user_file

RECEIVED = "code-received"
"""The directory, in a job directory, for the code of another machine, whose archive is beside it with `.tar.gz`."""

_MOST_SYNCED = 512 << 20
"""Maximum size for --sync in bytes: more is data, which belongs on a shared disk."""


_LARGEST_SCRIPT = 64 << 20


def find_script(spec: RunSpec) -> Script | None:
    """The file of a script; of a module or a named function only if it is in the working directory, else None."""
    if spec.call is not None:
        return _read(spec.call.file, Path(spec.cwd, spec.call.file)) if spec.call.file else None
    if spec.kind == "script":
        path = Path(spec.cwd, spec.target)
        _check_script(spec, path)
        return _read(spec.target, path)
    parts = spec.target.split(".")
    if not all(parts) or not spec.target.isprintable() or "/" in spec.target:
        raise UsageError(f"-m {spec.target}: invalid name of a module", hint="for example `muster run -m mypkg.train`")
    for candidate in (Path(*parts).with_suffix(".py"), Path(*parts, "__main__.py")):
        if os.path.isfile(Path(spec.cwd, candidate)):  # unlike Path.is_file, False for a name that is too long
            return _read(str(candidate), Path(spec.cwd, candidate))
    return None


def _check_script(spec: RunSpec, path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"script {spec.target} not found in {spec.cwd}", hint=_instead(spec)) from None
    except (OSError, ValueError) as error:  # a name that is too long, a loop of links; a NUL
        raise _unreadable(spec.target, error) from None
    if stat.S_ISDIR(mode):
        raise UsageError(f"{spec.target} is a directory, not a script", hint="give the .py file in it")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{spec.target} is not a regular file", hint="save the code in a .py file and run that")


def _unreadable(name: str, error: OSError | ValueError) -> UsageError:
    why = (error.strerror if isinstance(error, OSError) else "") or str(error)
    return UsageError(f"could not read {cut(name, 200)} ({why.lower()})", hint="check the path of the script")


def is_below(path: str, folder: str) -> bool:
    """Whether a path, relative to a directory, is inside it."""
    return Path(folder, path).resolve().is_relative_to(Path(folder).resolve())


def archive(cwd: str) -> bytes:
    """The working directory as a compressed tar: what git would track, or outside a checkout everything not hidden."""
    if os.path.basename(cwd) == RECEIVED:
        return Path(f"{cwd}.tar.gz").read_bytes()  # packed on the other machine, where git knows the files
    import tarfile  # here, because few jobs copy their code

    total = 0
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for name in sorted(files_of(cwd)):
            path = os.path.join(cwd, name)
            if not os.path.lexists(path):
                continue  # git still tracks a file that was deleted
            total += os.lstat(path).st_size
            if total > _MOST_SYNCED:
                raise UsageError(
                    f"--sync: {cwd} contains more than {_MOST_SYNCED >> 20} MB that git would track",
                    hint="add data and checkpoints to .gitignore to exclude them",
                )
            tar.add(path, arcname=name, recursive=False)
    return buffer.getvalue()


def files_of(cwd: str) -> Iterator[str]:
    """The files of a project, relative to its directory: what git would track, or everything not hidden."""
    tracked = _git_files(cwd, "--cached", "--recurse-submodules")
    untracked = _git_files(cwd, "--others", "--exclude-standard")
    if tracked is not None and untracked is not None:
        yield from tracked | untracked
        return
    for folder, subfolders, names in os.walk(cwd):
        subfolders[:] = [
            name
            for name in subfolders
            if not name.startswith(".")
            and name != "__pycache__"
            and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
        ]
        yield from (os.path.relpath(os.path.join(folder, name), cwd) for name in names if not name.startswith("."))


def _git_files(cwd: str, *options: str) -> set[str] | None:
    """What `git ls-files` lists in a directory; None without git or a checkout."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", *options], cwd=cwd, capture_output=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {name for name in os.fsdecode(listed.stdout).split("\0") if name} if listed.returncode == 0 else None


def _read(name: str, path: Path) -> Script:
    try:
        data = read_user_file(path, most=_LARGEST_SCRIPT)
    except OSError as error:
        raise _unreadable(name, error) from None
    return Script(path=name, digest=fingerprint(data), text=data.decode(errors="replace"))


def _instead(spec: RunSpec) -> str:
    """What to type instead of a script that does not exist."""
    from difflib import get_close_matches

    path = Path(spec.cwd, spec.target)
    names = [entry.name for entry in path.parent.glob("*.py")] if path.parent.is_dir() else []
    near = get_close_matches(path.name, names, n=1)
    if near:
        return f"did you mean `{path.parent.joinpath(near[0]).name}`?"
    if path.suffix != ".py":
        return "the script follows the options of `muster run`; options of Muster come before it"
    if os.path.isabs(spec.target):
        return f"check the path; this machine is {os.uname().nodename}"
    return f"the working directory is {spec.cwd}; give the path of the script"

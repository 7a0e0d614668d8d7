"""Which Python environment a job runs in: that of `muster submit`, or that of --venv."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from muster.errors import UsageError
from muster.own_python import module_argv
from muster.submit.batch_script import quote
from muster.submit.request import Activation


def own_activation(executable: str, prefix: str, base_prefix: str, env: Mapping[str, str]) -> Activation:
    """Return the activation of the interpreter with these `sys.executable`, `sys.prefix` and `sys.base_prefix`."""
    found = None
    if prefix != base_prefix:
        found = _virtual(Path(prefix), "The virtual environment that `muster submit` ran in.")
    if found is None and _is_conda(Path(prefix)):
        found = _conda(Path(prefix), "The conda environment that `muster submit` ran in.", env)
    if found is not None:
        return found
    return Activation(
        comment="No virtual environment: this is the Python that `muster submit` ran in.",
        muster=module_argv("muster", executable),
    )


def named_activation(path: str, env: Mapping[str, str]) -> Activation:
    """Return the activation of `--venv PATH`; UsageError if it does not exist or Muster is not installed in it."""
    # Keep symbolic links in the path: home directories are often behind one, and its target may differ on the nodes.
    folder = Path(path).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"--venv {path}: no such directory", hint="give the directory that contains bin/activate")
    if not (folder / "bin" / "muster").exists():
        pip = f"{quote(str(folder / 'bin' / 'pip'))} install ."
        hint = (
            f"`{pip}` in a checkout of Muster installs it"
            if (folder / "bin" / "python").exists()
            else "give the directory that contains bin/activate"
        )
        raise UsageError(f"--venv {path}: Muster is not installed there", hint=hint)
    comment = "The environment given with --venv."
    found = _conda(folder, comment, env) if _is_conda(folder) else _virtual(folder, comment)
    if found is None:
        raise UsageError(
            f"--venv {path}: not a virtual environment, bin/activate is missing",
            hint="give the directory that contains bin/activate, or a conda environment",
        )
    return found


def _virtual(folder: Path, comment: str) -> Activation | None:
    activate = folder / "bin" / "activate"
    if not activate.is_file():
        return None
    return Activation(comment=comment, line=f"source {quote(str(activate))}", muster=_muster(folder))


def _conda(folder: Path, comment: str, env: Mapping[str, str]) -> Activation:
    """Return conda's own activation if conda is found; else put its programs first in PATH, which is most of it."""
    candidates = [folder, folder.parent.parent]
    if env.get("CONDA_EXE"):
        candidates.insert(0, Path(env["CONDA_EXE"]).parent.parent)
    for root in candidates:
        if (root / "bin" / "activate").is_file() and _is_conda(root):
            line = f"source {quote(str(root / 'bin' / 'activate'))} {quote(str(folder))}"
            return Activation(comment=comment, line=line, muster=_muster(folder))
    line = f'export CONDA_PREFIX={quote(str(folder))} PATH={quote(str(folder / "bin"))}:"$PATH"'
    return Activation(comment=comment, line=line, muster=_muster(folder))


def _is_conda(folder: Path) -> bool:
    return (folder / "conda-meta").is_dir()


def _muster(folder: Path) -> tuple[str, ...]:
    # Without the command (a checkout on PYTHONPATH), the module may still be importable.
    return ("muster",) if (folder / "bin" / "muster").exists() else module_argv("muster", "python")

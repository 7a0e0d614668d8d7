"""Classifies source files by path alone, because the paths in stack traces come from other hosts."""

from __future__ import annotations

_MUSTER = ("/muster/agent/", "/muster/rank/", "/muster/shared/")

_TORCH = tuple(f"/torch/{part}" for part in ("autograd/", "cuda/", "distributed/", "nn/", "optim/", "utils/", "_"))
"""Parts of torch, which may be outside of site-packages in a build from source."""


def is_users(path: str) -> bool:
    """Whether a file is the user's own, not part of torch, a package, the standard library or Muster."""
    return not (
        path.startswith("<")
        or "-packages/" in path
        or any(part in path for part in (*_MUSTER, *_TORCH))
        or _is_standard_library(path)
    )


def is_musters(path: str) -> bool:
    """Whether a file is part of Muster's code on hosts; the path is `<muster>/…` if it was compiled there."""
    return path.startswith("<muster>") or any(folder in path for folder in _MUSTER)


def _is_standard_library(path: str) -> bool:
    """`…/lib/python3.12/`, `…/lib64/python3.13t/`, `…/lib/python312.zip/`."""
    for folder in ("/lib/python3", "/lib64/python3"):
        version, slash, _ = path.partition(folder)[2].partition("/")
        if slash and version.strip(".0123456789") in ("", "t", "zip"):
            return True
    return False

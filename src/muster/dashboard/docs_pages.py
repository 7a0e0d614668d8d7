"""Where the documentation is, so that findings can link to it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, metadata

_PACKAGE = "torchmuster"
_LABEL = "documentation"


@cache
def base() -> str:
    """The address of the documentation as the package's metadata has it, with a slash at its end; empty if unknown."""
    try:
        addresses = metadata(_PACKAGE).get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    for entry in addresses:
        label, _, address = str(entry).partition(",")
        if label.strip().lower() == _LABEL and address.strip().startswith("https://"):
            return address.strip().rstrip("/") + "/"
    return ""

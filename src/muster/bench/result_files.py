"""The result files of a benchmark: data as JSON, the figure as SVG and, if a converter is installed, as PNG."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.errors import MusterError

_CONVERTERS = {
    "rsvg-convert": ("rsvg-convert", "--zoom=2", "--output={png}", "{svg}"),
    "inkscape": ("inkscape", "--export-dpi=192", "--export-filename={png}", "{svg}"),
}
"""Programs that convert SVG to PNG, so that no drawing library is needed."""

_CONVERT_LIMIT = 60.0


def save(folder: Path, name: str, data: Mapping[str, Any], svg: str) -> list[Path]:
    """Write the files to a directory, which is created if missing, and return their paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    except OSError as error:
        raise MusterError(
            f"cannot write to {folder}: {(error.strerror or str(error)).lower()}",
            hint="choose another directory: --out DIR",
        ) from None
    paths = [folder / f"{name}.json", folder / f"{name}.svg"]
    return [*paths, *([png] if (png := as_png(paths[1])) is not None else [])]


def as_png(svg: Path) -> Path | None:
    """Convert a figure with a program on this machine, or return None if there is none."""
    png = svg.with_suffix(".png")
    for program, words in _CONVERTERS.items():
        if shutil.which(program) is None:
            continue
        argv = [word.format(svg=svg, png=png) for word in words]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=_CONVERT_LIMIT, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and png.exists():
            return png
    return None

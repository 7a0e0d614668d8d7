"""The reference in docs/ is what the code says: every command's help, every public name, every check."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "reference"
NAMES = sorted(path.name for path in KEPT.iterdir())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pages as the code of this moment makes them."""
    folder = tmp_path_factory.mktemp("reference")
    argv = [sys.executable, "-m", "tools.reference", "--to", str(folder)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def words(page: Path) -> list[str]:
    """The page without line breaks, and with `-H, --hosts HOSTS` as Python 3.13 writes `-H HOSTS, --hosts HOSTS`."""
    return re.sub(r"(--?[\w-]+) [A-Z]+, (--)", r"\1, \2", page.read_text(encoding="utf-8")).split()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_the_reference_is_what_the_code_says(written: Path, name: str):
    assert words(KEPT / name) == words(written / name), "if the code is right: python -m tools.reference"


def test_no_page_of_the_reference_is_missing(written: Path):
    assert sorted(path.name for path in written.iterdir()) == NAMES

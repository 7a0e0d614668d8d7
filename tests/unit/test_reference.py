"""The reference in docs/ is what the code says: every command's help, every public name, every check."""

from __future__ import annotations

import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest
from tools.reference import HEAD, pages

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "reference"
NAMES = sorted(path.name for path in KEPT.iterdir())


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The pages as the code of this moment makes them."""
    with patch.dict(os.environ):  # it sets the width of the terminal
        return pages()


def words(page: str) -> list[str]:
    """The page without line breaks, and with `-H, --hosts HOSTS` as Python 3.13 writes `-H HOSTS, --hosts HOSTS`."""
    return re.sub(r"(--?[\w-]+) [A-Z]+, (--)", r"\1, \2", page).split()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_the_reference_is_what_the_code_says(written: dict[str, str], name: str):
    kept = (KEPT / name).read_text(encoding="utf-8")
    assert words(kept) == words(HEAD + written[name]), "if the code is right: python -m tools.reference"


def test_no_page_of_the_reference_is_missing(written: dict[str, str]):
    assert sorted(written) == NAMES

"""Writing results into the pages of the documentation."""

from __future__ import annotations

from pathlib import Path


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two marks of a page."""
    before, _, rest = page.read_text().partition(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")

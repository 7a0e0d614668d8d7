"""Pages of the documentation that findings link to, served as Markdown, so that no network is needed."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

PAGES = frozenset({"hangs.md", "stragglers.md", "troubleshooting.md"})


def text(name: str) -> bytes | None:
    """Return the Markdown of a page: of the copy in the wheel, or of docs/ in a checkout; None if there is none."""
    packaged = files("muster.dashboard") / "docs" / name
    checkout = Path(__file__).parents[3] / "docs" / name
    page = next((path for path in (packaged, checkout) if name in PAGES and path.is_file()), None)
    return None if page is None else page.read_bytes()

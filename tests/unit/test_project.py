"""The repository's own promises: version, links, what the wheel has."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from muster import __version__

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", ".github/**/*.md") for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(document: Path) -> set[str]:
    """The `#anchors` of a Markdown file, made of its headings as GitHub makes them and as mkdocs does."""
    headings = HEADING.findall(document.read_text(encoding="utf-8"))
    plain = [re.sub(r"[^\w\- ]", "", heading).strip().lower() for heading in headings]
    return {heading.replace(" ", "-") for heading in plain} | {re.sub(r"[ -]+", "-", heading) for heading in plain}


def test_the_changelog_begins_with_the_version_of_the_package():
    newest = re.search(r"^## \[?(\d[^\]\s]*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest.group(1) == __version__


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_in_a_document_leads_somewhere(document: Path):
    dead: list[str] = []
    for link in LINK.findall(document.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue  # an address on the web: the tests do not use the network
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_the_documents_are_found():
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {path.name for path in DOCUMENTS}


def test_the_wheel_says_that_it_is_typed_and_has_the_files_of_the_dashboard(tmp_path: Path):
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    static = (ROOT / "src" / "muster" / "dashboard" / "static").iterdir()
    assert {"muster/py.typed", *(f"muster/dashboard/static/{file.name}" for file in static)} <= names


def test_make_alone_explains_every_target():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    listing = subprocess.run(["make", "-C", ROOT], capture_output=True, text=True, check=True, timeout=100).stdout
    assert re.findall(r"^  make (\w+)  +\w", listing, re.MULTILINE) == targets

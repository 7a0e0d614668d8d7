"""The documentation site in a browser, opened as files: search, copy buttons, and every page at two widths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import PROGRAM, Browser
from waiting import patience

pytest.importorskip("mkdocs")

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=patience(100))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip("there is no Chromium: apt-get install chromium-headless-shell")
    with Browser() as browser:
        yield browser


FOUND = {
    "dashboard": "dashboard.html",
    "configuration file": "configuration.html",
    "jupyter": "launch.html",
    "tqdm": "libraries.html",
    "wandb": "libraries.html",
    "FSDP": "libraries.html",
    "GIL": "hangs.html",
    "OOM": "troubleshooting.html",
    "preemption": "engines/slurm.html",
    "install": "install.html",
    "hang": "hangs.html",
    "straggler": "stragglers.html",
    "slurm": "engines/slurm.html",
    "exit code": "reference/exit-codes.html",
    "Gloo connectFullMesh failed": "troubleshooting.html",
}
"""What people search for, and the page that must come first."""


def test_the_site_builds_without_a_broken_link_or_a_stale_name(site: Path):
    assert (site / "index.html").exists()


def type_in_search(browser: Browser, words: str) -> None:
    """Replace what the search field has; the site looks at it when a key is released."""
    field = "document.querySelector('.md-search__input')"
    browser.js(f"{field}.value = {json.dumps(words)}")
    browser.js(f"{field}.dispatchEvent(new KeyboardEvent('keyup', {{key: 'a', bubbles: true}}))")


def test_a_search_finds_the_right_page_first(site: Path, browser: Browser):
    browser.open(f"file://{site}/index.html")
    browser.click("label[for=__search]")
    browser.js("document.querySelector('.md-search__input').focus()")
    browser.wait("document.querySelector('.md-search-result__meta').innerText.startsWith('Type to')")
    first: dict[str, str] = {}
    for words in FOUND:
        type_in_search(browser, "")
        browser.wait("document.querySelector('.md-search-result__link') === null")
        type_in_search(browser, words)
        address = browser.wait("document.querySelector('.md-search-result__link')?.href")
        first[words] = address.split("?")[0].removeprefix(f"file://{site}/").split("#")[0]
    assert first == FOUND


def test_the_copy_button_copies_commands_without_prompt_and_output(site: Path, browser: Browser):
    browser.open(f"file://{site}/first-run.html")
    browser.js("window.copied = []; document.execCommand = () => (copied.push(String(getSelection())), true)")
    browser.js("navigator.clipboard.writeText = text => (copied.push(text), Promise.resolve())")
    button = "[data-copy='muster run --nproc 2 where.py'] button[data-clipboard-target]"
    browser.wait(f'document.querySelector("{button}") !== null')
    browser.js(f'document.querySelector("{button}").click()')
    assert browser.wait("copied.length && copied[0]") == "muster run --nproc 2 where.py"


def test_every_page_fits_the_window_and_asks_for_nothing_but_files(site: Path, browser: Browser):
    wide: list[tuple[str, int]] = []
    for page in sorted(site.rglob("*.html")):
        if page.name != "404.html":
            browser.resize(1280, 844)
            browser.open(f"file://{page}")
            for width in (1280, 390):
                browser.resize(width, 844, phone=width < 600)
                if browser.js("document.documentElement.scrollWidth") > width:
                    wide.append((page.relative_to(site).as_posix(), width))
    assert wide == []
    assert [address for address in browser.requests if not address.startswith(("file:", "data:", "about:"))] == []
    assert browser.said == []

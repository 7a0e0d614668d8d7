"""Hooks that mkdocs calls while it builds the site: nothing from the network, pages from the root, tidy HTML."""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from tools.console import commands_of

ROOT = Path(__file__).parents[1]

ROOT_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "ARCHITECTURE.md": "architecture.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
"""Files of the repository's root that are pages of the site too, without a copy in docs/."""

LAST_IN_SEARCH = "---\nsearch:\n  boost: 0.3\n---\n\n"
"""People who search the site want guides before the changelog and the architecture."""

FOREIGN = re.compile(r'<(?:script|img|iframe|link(?![^>]*rel="canonical"))[^>]*(?:src|href)="(?:https?:)?//[^"]*"')
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
CONSOLE = re.compile(r'<div class="language-console highlight">(.*?)</div>', re.DOTALL)
EMPTY_HEAD = re.compile(r"<thead>\s*<tr>(?:\s*<th[^>]*>\s*</th>)+\s*</tr>\s*</thead>\s*")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository's root; mkdocs calls this."""
    pages = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in ROOT_PAGES.items()}
    pages["support.md"] = support_matrix((ROOT / "README.md").read_text(encoding="utf-8"))
    for page, text in pages.items():
        files.append(File.generated(config, page, content=f"{LAST_IN_SEARCH}{LINK.sub(site_link, text)}"))
    return files


def support_matrix(readme: str) -> str:
    """The section `Support` of the README as a page."""
    found = re.search(r"^## Support\n(.*?)(?=^## )", readme, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit("README.md: the section `## Support` is missing")
    return f"# Support matrix\n{found.group(1)}"


def site_link(link: re.Match[str]) -> str:
    """A link of a file in the root as it must be on the site; only its text where the site has no such page."""
    text, target, anchor = link.group(1), link.group(2), link.group(3) or ""
    if target in ROOT_PAGES:
        return f"[{text}]({ROOT_PAGES[target]}{anchor})"
    if target == "README.md":
        return f"[{text}](index.md)"
    if target.startswith("docs/"):
        return f"[{text}]({target.removeprefix('docs/')}{anchor})"
    return text


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links to files of the repository's root lead to their pages on the site; mkdocs calls this."""
    return LINK.sub(from_page(page.file.src_uri), markdown)


def from_page(page: str) -> Callable[[re.Match[str]], str]:
    """A function that rewrites a link from a page in docs/ to a file of the root; other links stay as they are."""
    folder = posixpath.dirname(page)

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found.group(1), found.group(2), found.group(3) or ""
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        if path.startswith("docs/"):
            return found.group()
        if (path, anchor) == ("README.md", "#support"):
            return f"[{text}]({posixpath.relpath('support.md', folder or '.')})"
        if path in ROOT_PAGES:
            return f"[{text}]({posixpath.relpath(ROOT_PAGES[path], folder or '.')}{anchor})"
        raise SystemExit(f"docs/{page}: {path} is not a page of the site (ROOT_PAGES in tools/site_hook.py)")

    return link


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Let the copy button copy only commands, and drop empty table headers; mkdocs calls this."""
    return EMPTY_HEAD.sub("", CONSOLE.sub(with_commands(page.file.src_uri), html))


def with_commands(page: str) -> Callable[[re.Match[str]], str]:
    """A function that gives a console block the attribute `data-copy`: its commands without prompts and output."""

    def block(found: re.Match[str]) -> str:
        text = html.unescape(re.sub(r"<[^>]+>", "", found.group(1)))
        try:
            commands = commands_of(text.strip("\n").splitlines())
        except ValueError as error:
            raise SystemExit(f"{page}: {error}") from None
        copied = html.escape("\n".join(command.text for command in commands))
        return f'<div class="language-console highlight" data-copy="{copied}">{found.group(1)}</div>'

    return block


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Raise an error for a page that would load something from the network; called by mkdocs."""
    found = FOREIGN.search(output)
    if found:
        raise SystemExit(f"{page.file.src_uri}: the page would load from the network: {found.group()}")
    return output

"""Hook of mkdocs: no page of the site may load anything from the network."""

from __future__ import annotations

import re
from typing import Any

FOREIGN = re.compile(r'<(?:script|img|iframe|link(?![^>]*rel="canonical"))[^>]*(?:src|href)="(?:https?:)?//[^"]*"')


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Raise an error for a page that would load something from the network; called by mkdocs."""
    found = FOREIGN.search(output)
    if found:
        raise SystemExit(f"{page.file.src_uri}: the page would load from the network: {found.group()}")
    return output

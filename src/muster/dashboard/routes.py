"""What can be asked of the page's server, and the answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.resources import files
from pathlib import PurePath
from typing import Any
from urllib.parse import parse_qs

from muster.dashboard import log_pieces
from muster.dashboard.job_source import Source
from muster.dashboard.prometheus import CONTENT_TYPE, metrics

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_STATIC = {
    file.name: file for file in (files("muster.dashboard") / "static").iterdir() if PurePath(file.name).suffix in _KINDS
}
"""Files that are sent as they are; a name that is not among them is not looked for."""

_LONGEST_SEARCH = 200
"""Characters."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is sent back."""

    status: int = HTTPStatus.OK
    kind: str = "application/json"
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class NotThere(Exception):
    """There is nothing at this address, and why."""


def route(source: Source, path: str, query: str, *, stays: float | None) -> Answer:
    """The answer to a request for a path below the token; `stays` is what the page tells of its server's end."""
    name = path or "page.html"
    if name in _STATIC:
        return Answer(kind=_KINDS[PurePath(name).suffix], body=_STATIC[name].read_bytes())
    asked = {name: values[-1] for name, values in parse_qs(query, errors="surrogateescape").items()}
    if path == "view.json":
        return _json({**source.view(_number(asked, "since", 0.0)), "stays": stays})
    if path == "log.json":
        return _json(_log(source, asked))
    if path == "stacks.json":
        try:
            return _json(source.report(int(_number(asked, "report"))).stacks)
        except IndexError:
            raise NotThere("there is no such report") from None
    if path in ("state.json", "metrics"):
        state = source.job().state
        if state is None:
            raise NotThere("nothing is known of the job yet")
        if path == "state.json":
            return _json(state.as_data())
        return Answer(kind=CONTENT_TYPE, body=metrics(state).encode())
    raise NotThere("there is no such page")


def _log(source: Source, asked: Mapping[str, str]) -> dict[str, Any]:
    """A piece of one rank's log, or what was found in one or all of them."""
    text = asked.get("find", "").strip()[:_LONGEST_SEARCH]
    attempt = int(_number(asked, "attempt", 0))
    if text and "rank" not in asked:
        return source.find(text, attempt).as_data()
    path = source.log(int(_number(asked, "rank")), attempt)
    before = int(_number(asked, "before")) if "before" in asked else None
    try:
        if text:
            return log_pieces.find(path, text, before).as_data()
        if "since" in asked:
            return log_pieces.new_lines(path, int(_number(asked, "since"))).as_data()
        return log_pieces.last_lines(path, before).as_data()
    except FileNotFoundError:  # it is made when the rank first writes
        return log_pieces.NOTHING.as_data()
    except OSError as error:
        raise NotThere(f"the log cannot be read: {(error.strerror or str(error)).lower()}") from None


def _number(asked: Mapping[str, str], name: str, default: float | None = None) -> float:
    """A number of the query; it is never below 0 nor beyond what a file may hold."""
    if name not in asked and default is not None:
        return default
    text = asked.get(name, "")
    if not re.fullmatch(r"\d+(\.\d*)?", text, re.ASCII):
        raise NotThere(f"`{name}` must be a number")
    return min(float(text), 2.0**53)


def _json(data: Any) -> Answer:
    return Answer(body=json.dumps(data, separators=(",", ":")).encode("utf-8", "replace"))

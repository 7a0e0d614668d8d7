"""What can be requested from the dashboard's server, and the answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import parse_qs

from muster.dashboard import docs_pages, log_pieces
from muster.dashboard.job_list import JobList
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
    body: bytes = b""
    file: Path | None = None
    """A file to send instead of `body`, which may be too large for memory."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class NotThere(Exception):
    """Nothing is at this address, and why."""


def route(jobs: JobList, path: str, query: str, *, stays: float | None) -> Answer:
    """The answer to a request for a path below the token; `stays` is how long the server outlives a job's end."""
    if path in ("jobs", "jobs/"):
        return redirect("jobs/") if path == "jobs" else _static("jobs.html")
    if path == "jobs.json":
        return _json({"jobs": jobs.entries()})
    if not path.startswith("jobs/"):
        return _of_job(jobs.first, path, query, stays=stays)
    name, slash, rest = path.removeprefix("jobs/").partition("/")
    if rest == "" and name in _STATIC:
        return _static(name)
    source = jobs.source(name)
    if source is None:
        raise NotThere("no such job")
    return _of_job(source, rest, query, stays=stays) if slash else redirect(f"{name}/")


def redirect(where: str) -> Answer:
    """Send the browser to another address."""
    return Answer(status=HTTPStatus.PERMANENT_REDIRECT, kind="text/plain", headers={"Location": where})


def _static(name: str) -> Answer:
    return Answer(kind=_KINDS[PurePath(name).suffix], body=_STATIC[name].read_bytes())


def _of_job(source: Source, path: str, query: str, *, stays: float | None) -> Answer:
    name = path or "dashboard.html"
    if name in _STATIC:
        return _static(name)
    folder, _, page = name.rpartition("/")
    if folder == "docs" and (markdown := docs_pages.text(page)) is not None:
        return Answer(kind="text/plain; charset=utf-8", body=markdown)
    asked = {name: values[-1] for name, values in parse_qs(query, errors="surrogateescape").items()}
    if path == "view.json":
        return _json({**source.view(_number(asked, "since", 0.0)), "stays": stays})
    if path == "log.json":
        return _json(_log(source, asked))
    if path == "log.txt":
        return _download(source, asked)
    if path == "stacks.json":
        try:
            return _json(source.report(int(_number(asked, "report"))).stacks)
        except IndexError:
            raise NotThere("no such report") from None
    if path in ("state.json", "metrics"):
        state = source.job().state
        if state is None:
            raise NotThere("nothing is known about this job yet")
        if path == "state.json":
            return _json(state.as_data())
        return Answer(kind=CONTENT_TYPE, body=metrics(state).encode())
    raise NotThere("no such page")


def _log(source: Source, asked: Mapping[str, str]) -> dict[str, Any]:
    """A piece of one rank's log, or what was found in one or all of them; each line with its time, if known."""
    text = asked.get("find", "").strip()[:_LONGEST_SEARCH]
    attempt = int(_number(asked, "attempt", 0))
    times = source.log_times(attempt)
    if text and "rank" not in asked:
        found = source.find(text, attempt)
        lines = [(rank, *line, times and times.at(rank, line.at)) for rank, line in found.lines]
        return {**found.as_data(), "lines": lines}
    rank = int(_number(asked, "rank"))
    path = source.log(rank, attempt)
    before = int(_number(asked, "before")) if "before" in asked else None
    try:
        if text:
            piece = log_pieces.find(path, text, before)
        elif "since" in asked:
            piece = log_pieces.new_lines(path, int(_number(asked, "since")))
        else:
            piece = log_pieces.last_lines(path, before)
    except FileNotFoundError:  # it is made when the rank first writes
        piece = log_pieces.NOTHING
    except OSError as error:
        raise NotThere(f"could not read the log: {(error.strerror or str(error)).lower()}") from None
    return {**piece.as_data(), "lines": [(*line, times and times.at(rank, line.at)) for line in piece.lines]}


def _download(source: Source, asked: Mapping[str, str]) -> Answer:
    """The whole log of one rank, as the rank wrote it."""
    rank, attempt = int(_number(asked, "rank")), int(_number(asked, "attempt", 0))
    path = source.log(rank, attempt)
    if not path.is_file():
        raise NotThere(f"rank {rank} has written nothing")
    job = re.sub(r"[^\w.-]", "_", source.folder.name, flags=re.ASCII)  # in a header
    name = f"{job}-attempt-{attempt}-rank-{rank}.log"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Answer(kind="text/plain; charset=utf-8", file=path, headers=headers)


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

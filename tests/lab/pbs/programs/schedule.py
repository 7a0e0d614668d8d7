"""The scheduler: gives queued jobs their hosts and starts them on the first one."""

from __future__ import annotations

import time

import records
from request import Chunk, place_chunks, too_much
from wire import SITE, call

CAPACITY = {name: {"ncpus": host["ncpus"], "ngpus": host["ngpus"]} for name, host in SITE["hosts"].items()}


def schedule() -> None:
    """Start every queued job that fits; it is called when a job comes and when one has gone."""
    for record in _place():
        first = record["chunks"][0]["host"]
        try:
            call(first, do="start", job=record["id"])
        except OSError as error:
            records.change(record["id"], state="H", comment=f"job held, too many failed attempts to run: {error}")


def _place() -> list[records.Record]:
    placed: list[records.Record] = []
    with records.locked():
        everything = records.everything()
        free = {host: dict(have) for host, have in CAPACITY.items()}
        for record in everything:
            if record["state"] in "RE":
                _take(free, record)
        finished = {record["id"] for record in everything if record["state"] == "F"}
        for record in everything:
            if record["state"] == "H" and record["awaits"] in finished:
                record["state"] = "Q"
            if record["state"] != "Q":
                continue
            chunks = place_chunks(record["chunks"], record["place"], free)
            if chunks is None:
                never = too_much(record["chunks"], CAPACITY)
                record["comment"] = f"Can Never Run: {never}" if never else "Not Running: No free nodes"
            else:
                _number(chunks, [chunk for other in everything if other["state"] in "RE" for chunk in other["chunks"]])
                record |= {"chunks": chunks, "state": "R", "stime": time.time(), "comment": "Job run"}
                _take(free, record)
                placed.append(record)
            records.save(record)
    return placed


def _number(chunks: list[Chunk], beside: list[Chunk]) -> None:
    """The number of each chunk on its host, which exec_host shows: chunks of other jobs are counted too."""
    for index, chunk in enumerate(chunks):
        chunk["index"] = sum(other["host"] == chunk["host"] for other in [*beside, *chunks[:index]])


def _take(free: dict[str, dict[str, int]], record: records.Record) -> None:
    for chunk in record["chunks"]:
        for name, rest in free[chunk["host"]].items():
            free[chunk["host"]][name] = rest - chunk[name]

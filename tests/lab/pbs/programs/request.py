"""What a job asks for with -l, and where its chunks are put. Pure."""

from __future__ import annotations

import re
from typing import Any

Chunk = dict[str, Any]
"""Resources of one chunk: ncpus, ngpus, mpiprocs, ompthreads, mem, host; `asked` is its text."""

JOB_WIDE = ("ncpus", "ngpus", "mem", "mpiprocs", "ompthreads")
KNOWN = (*JOB_WIDE, "select", "place", "nodes", "walltime", "host", "vnode", "cput", "pmem", "vmem", "arch")


class Refused(Exception):
    """What qsub says instead of a job id, and its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def read_request(options: list[str], default_chunk: dict[str, int] | None = None) -> dict[str, Any]:
    """Chunks, place and walltime of all -l options together; of two values for one resource the first counts.

    `default_chunk` is what the site adds to chunks that do not say it, which changes nothing in the select line.
    """
    wanted: dict[str, str] = {}
    for item in (item for option in options for item in option.split(",")):
        name, _, value = item.partition("=")
        if name not in KNOWN:
            raise Refused(f"qsub: Unknown resource  Resource_List.{name}", 15035 % 256)
        wanted.setdefault(name, value)
    wide = {name: wanted[name] for name in JOB_WIDE if name in wanted}
    if "select" in wanted and wide:
        name = next(iter(wide))
        raise Refused(f'qsub: "-lresource=" cannot be used with "select" or "place", resource is: {name}', 170)
    place = wanted.get("place")
    if "nodes" in wanted:
        select, place = _old_nodes(wanted["nodes"]), "scatter"
    elif "select" in wanted:
        select, place = wanted["select"], place or "free"
    else:
        select, place = ":".join(["1", *(f"{name}={wide[name]}" for name in sorted(wide))]), place or "pack"
    return {
        "select": select,
        "place": place,
        "nodes": wanted.get("nodes"),
        "chunks": _read_select(select, default_chunk or {}),
        "walltime": _seconds(wanted["walltime"]) if "walltime" in wanted else None,
    }


def nodefile_lines(chunks: list[Chunk]) -> list[Chunk]:
    """The chunk behind each line of the nodefile: as many lines as it has mpiprocs, whatever its CPUs and GPUs."""
    return [chunk for chunk in chunks for _ in range(chunk.get("mpiprocs", 1))]


def place_chunks(chunks: list[Chunk], place: str, free: dict[str, dict[str, int]]) -> list[Chunk] | None:
    """The chunks with a `host` each, or None if they do not fit into what is free on each host."""
    free = {host: dict(rest) for host, rest in free.items()}
    how = place.split(":")[0]
    if how == "pack":
        tries = [place_chunks(chunks, "free", {host: rest}) for host, rest in free.items()]
        return next((placed for placed in tries if placed is not None), None)
    placed: list[Chunk] = []
    for chunk in chunks:
        taken = {other["host"] for other in placed if how in ("scatter", "vscatter")}
        for host, rest in free.items():
            wanted = chunk.get("host") or chunk.get("vnode") or host
            if host == wanted and host not in taken and all(chunk[name] <= rest[name] for name in rest):
                for name in rest:
                    rest[name] -= chunk[name]
                placed.append({**chunk, "host": host})
                break
        else:
            return None
    return placed


def too_much(chunks: list[Chunk], hosts: dict[str, dict[str, int]]) -> str | None:
    """Why a job can never run: a chunk that no host could hold."""
    for chunk in chunks:
        for name in ("ncpus", "ngpus"):
            most = max(have[name] for have in hosts.values())
            if chunk[name] > most:
                total = sum(have[name] for have in hosts.values())
                return f"Insufficient amount of resource: {name} (R: {chunk[name]} A: {most} T: {total})"
    return None


def _read_select(select: str, default_chunk: dict[str, int]) -> list[Chunk]:
    chunks: list[Chunk] = []
    for part in select.split("+"):
        number, *settings = part.split(":")
        if not number.isdigit():
            number, settings = "1", [number, *settings]
        chunk: Chunk = {"asked": ":".join(settings), "ncpus": 1, "ngpus": 0, **default_chunk}
        for setting in settings:
            name, _, value = setting.partition("=")
            chunk[name] = int(value) if value.isdigit() else value
        chunks += [dict(chunk) for _ in range(int(number))]
    return chunks


def _old_nodes(nodes: str) -> str:
    """`2:ppn=4` as PBS rewrites it; `gpus=` is Torque's."""
    parts: list[str] = []
    for part in nodes.split("+"):
        number, *settings = part.split(":")
        asked = {name: value for name, _, value in (setting.partition("=") for setting in settings)}
        ppn = asked.get("ppn", "1")
        gpus = f":ngpus={asked['gpus']}" if "gpus" in asked else ""
        where = f":host={number}" if not number.isdigit() else ""
        parts.append(f"{number if number.isdigit() else 1}:ncpus={ppn}:mpiprocs={ppn}{gpus}{where}")
    return "+".join(parts)


def _seconds(text: str) -> int:
    if not re.fullmatch(r"(\d+:){0,2}\d+", text):
        raise Refused(f"qsub: Illegal attribute or resource value Resource_List.walltime: {text}", 15014 % 256)
    seconds = 0
    for part in text.split(":"):
        seconds = 60 * seconds + int(part)
    return seconds
